"""Every method by its name, with the settings that differ from its class's defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from torch import nn

from fsvi.errors import InvalidInputError
from fsvi.functions.contexts import Batch, Context, Mixture, Monochrome, Uniform
from fsvi.functions.divergences import Tempered
from fsvi.likelihoods import Likelihood
from fsvi.methods.base import Method
from fsvi.methods.duq import DUQ
from fsvi.methods.ensemble import Ensemble
from fsvi.methods.fbnn import FBNN
from fsvi.methods.fixed_mean import FixedMeanFSVI
from fsvi.methods.fmgp import FMGP
from fsvi.methods.fseb import FSEB
from fsvi.methods.fsvi import FSVI
from fsvi.methods.gfsvi import GFSVI
from fsvi.methods.ivon import IVON
from fsvi.methods.laplace import Laplace
from fsvi.methods.map import MAP
from fsvi.methods.mc_dropout import MCDropout
from fsvi.methods.mfvi import MFVI
from fsvi.methods.radial import RadialMFVI
from fsvi.methods.rank1 import Rank1
from fsvi.methods.sfsvi import SFSVI
from fsvi.methods.sngp import SNGP
from fsvi.methods.spg import SPG
from fsvi.methods.swag import SWAG
from fsvi.methods.vbll import VBLL
from fsvi.methods.vogn import VOGN
from fsvi.networks.network import Network
from fsvi.validation import check_choice

Net = nn.Module | Network | Callable[[], nn.Module | Network]
"""A network, or a function that makes one."""


@dataclass(frozen=True)
class MethodEntry:
    """A method's class, and the settings that differ from its defaults.

    Attributes:
        method: The class.
        settings: Settings that differ.
        regression: Further settings that differ where targets are real numbers.
    """

    method: Callable[..., Method]
    settings: Mapping[str, Any] = field(default_factory=dict)
    regression: Mapping[str, Any] = field(default_factory=dict)

    @property
    def arguments(self) -> list[str]:
        """The settings that the class takes, after network and likelihood."""
        return list(inspect.signature(self.method).parameters)[2:]

    @property
    def takes_context(self) -> bool:
        """Whether the method looks at points other than the data."""
        return "context" in self.arguments


METHODS: dict[str, MethodEntry] = {
    "map": MethodEntry(MAP),
    "mfvi": MethodEntry(MFVI),
    "mfvi-tempered": MethodEntry(MFVI, {"kl_weight": Tempered(0.1)}),
    "mfvi-radial": MethodEntry(RadialMFVI),
    "mc-dropout": MethodEntry(MCDropout, regression={"rate": 0.05}),  # its noise is hard to tell from the masks'
    "swag": MethodEntry(SWAG),
    "duq": MethodEntry(DUQ),
    "laplace": MethodEntry(Laplace),
    "vogn": MethodEntry(VOGN),
    "ivon": MethodEntry(IVON),
    "rank1": MethodEntry(Rank1),
    "vbll": MethodEntry(VBLL),
    "spg": MethodEntry(SPG),
    "fbnn": MethodEntry(FBNN),
    "fs-eb": MethodEntry(FSEB),
    "gfsvi": MethodEntry(GFSVI),
    "fmgp": MethodEntry(FMGP),
    "fsvi": MethodEntry(FSVI),
    "fsvi-fixed-mean": MethodEntry(FixedMeanFSVI),
    "s-fsvi": MethodEntry(SFSVI),
    "sngp": MethodEntry(SNGP),
}
"""Every method by its name; `ensemble:` before a name makes an ensemble of it."""

_ENSEMBLE = "ensemble:"


def method_names() -> list[str]:
    """Every name that `make_method` knows.

    Examples:
        >>> "fsvi" in fsvi.method_names() and "ensemble:fsvi" in fsvi.method_names()
        True
    """
    return [*METHODS, *(_ENSEMBLE + name for name in METHODS)]


def make_method(
    name: str, net: Net, likelihood: Likelihood, *, context: Context | None = None, **settings: Any
) -> Method:
    """The method called `name`, with defaults that suit the task unless `settings` say otherwise.

    Methods that take no context ignore `context`. For the others, the default is a box twice as wide as the data, and
    for networks with convolutions half the minibatch and half images of one color.

    Args:
        name: One of `method_names()`.
        net: A network, or a function that makes networks. Given a network, an ensemble's first member starts from its
            parameters; the others start from copies that are initialized again, as PyTorch does it.
        likelihood: Of the targets.
        context: Where functions are compared with the prior.
        settings: Arguments of the method's constructor; for an ensemble also `size`.

    Examples:
        >>> net = fsvi.networks.mlp(2, (20,), 2)
        >>> type(fsvi.make_method("swag", net, fsvi.Categorical())).__name__
        'SWAG'
        >>> len(fsvi.make_method("ensemble:map", net, fsvi.Categorical(), size=3).members)
        3
    """
    check_method(name)
    networks = _fresh(net)
    member = name.removeprefix(_ENSEMBLE)
    if member == name:
        return _make(name, next(networks), likelihood, context, settings)
    size = {"size": settings.pop("size")} if "size" in settings else {}
    return Ensemble(lambda: _make(member, next(networks), likelihood, context, settings), **size)


def check_method(name: str) -> str:
    """A name that `make_method` knows; the nearest is suggested."""
    if name not in method_names():
        near = get_close_matches(str(name).lower(), method_names(), n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        known = ", ".join(METHODS)
        raise InvalidInputError(
            f"there is no method {name!r}{hint}: there are {known}, and {_ENSEMBLE} before any of these."
        )
    return name


def find_method(name: str) -> MethodEntry:
    """The entry of a method, or of the members where `name` is an ensemble's; the nearest name is suggested."""
    return METHODS[check_method(name).removeprefix(_ENSEMBLE)]


def default_context(net: nn.Module | Network) -> Context:
    """A context that suits the network's inputs: vectors, or images."""
    if any(isinstance(module, nn.Conv2d) for module in Network.wrap(net).module.modules()):
        return Mixture([Batch(), Monochrome()], [0.5, 0.5])
    return Uniform(widen=0.5)


def _make(
    name: str, net: nn.Module | Network, likelihood: Likelihood, context: Context | None, settings: dict[str, Any]
) -> Method:
    entry = METHODS[name]
    for setting in settings:
        check_choice(f"setting of {name}", setting, entry.arguments)
    defaults = {**entry.settings, **(entry.regression if likelihood.is_numeric else {})}
    if entry.takes_context:
        defaults["context"] = default_context(net) if context is None else context
    return entry.method(net, likelihood, **{**defaults, **settings})


def _fresh(net: Net) -> Iterator[nn.Module | Network]:
    """Networks, each with parameters of its own."""
    if not isinstance(net, (nn.Module, Network)):
        while True:
            yield net()
    yield net
    while True:
        yield Network.wrap(net).redrawn()
