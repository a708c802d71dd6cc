"""Methods by the names that the command line and recipes call them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from functools import partial
from typing import Any

from torch import nn

from fsvi.errors import InvalidInputError
from fsvi.functions.contexts import Batch, Context, Mixture, Monochrome, Uniform
from fsvi.likelihoods import Categorical, Likelihood
from fsvi.methods.base import Method
from fsvi.methods.duq import DUQ
from fsvi.methods.ensemble import Ensemble
from fsvi.methods.fbnn import FBNN
from fsvi.methods.fsvi import FSVI
from fsvi.methods.laplace import Laplace
from fsvi.methods.map import MAP
from fsvi.methods.mc_dropout import MCDropout
from fsvi.methods.mfvi import MFVI
from fsvi.methods.radial import RadialMFVI
from fsvi.methods.rank1 import Rank1
from fsvi.methods.spg import SPG
from fsvi.methods.swag import SWAG
from fsvi.methods.vogn import VOGN
from fsvi.networks.network import Network
from fsvi.validation import check_choice

Net = nn.Module | Network | Callable[[], nn.Module | Network]
"""A network, or a function that makes one."""

METHODS: dict[str, Callable[..., Method]] = {
    "map": MAP,
    "mfvi": MFVI,
    "mfvi-tempered": partial(MFVI, kl_scale=0.1),
    "mfvi-radial": RadialMFVI,
    "mc-dropout": MCDropout,
    "swag": SWAG,
    "duq": DUQ,
    "laplace": Laplace,
    "vogn": VOGN,
    "rank1": Rank1,
    "spg": SPG,
    "fbnn": FBNN,
    "fsvi": FSVI,
}
"""What each name makes; `ensemble:` before a name makes an ensemble of it."""

_ENSEMBLE = "ensemble:"
_REGRESSION: dict[str, dict[str, Any]] = {"mc-dropout": {"rate": 0.05}}
"""Defaults that differ where targets are real numbers: a regression tells its own noise from that of the masks."""


def method_names() -> list[str]:
    """Every name that `make_method` knows."""
    return [*METHODS, *(_ENSEMBLE + name for name in METHODS)]


def make_method(
    name: str, net: Net, likelihood: Likelihood, *, context: Context | None = None, **settings: Any
) -> Method:
    """The method called `name`, with its own defaults for the task where `settings` do not say otherwise.

    `net` may be a function that makes networks. Otherwise an ensemble's first member gets the network as it is, and
    the others copies whose trainable layers are drawn anew, as PyTorch draws them; how many there are is `size`.
    Methods that need no `context` leave it aside; for those that do, the default is a box twice as wide as the data,
    and for networks with convolutions half the minibatch, half images of one colour.
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


def takes_context(name: str) -> bool:
    """Whether a method, or what an ensemble is made of, looks beyond the data."""
    return "context" in inspect.signature(METHODS[check_method(name).removeprefix(_ENSEMBLE)]).parameters


def default_context(net: nn.Module | Network) -> Context:
    """A context that suits the network's inputs: vectors, or images."""
    if any(isinstance(module, nn.Conv2d) for module in Network.wrap(net).module.modules()):
        return Mixture([Batch(), Monochrome()], [0.5, 0.5])
    return Uniform(widen=0.5)


def _make(
    name: str, net: nn.Module | Network, likelihood: Likelihood, context: Context | None, settings: dict[str, Any]
) -> Method:
    known = inspect.signature(METHODS[name]).parameters
    for setting in settings:
        check_choice(f"setting of {name}", setting, list(known)[2:])
    defaults = {} if isinstance(likelihood, Categorical) else _REGRESSION.get(name, {})
    if takes_context(name):
        defaults = {**defaults, "context": default_context(net) if context is None else context}
    return METHODS[name](net, likelihood, **{**defaults, **settings})


def _fresh(net: Net) -> Iterator[nn.Module | Network]:
    """Networks, each with parameters of its own."""
    if not isinstance(net, (nn.Module, Network)):
        while True:
            yield net()
    yield net
    while True:
        yield Network.wrap(net).redrawn()
