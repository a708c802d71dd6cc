"""Every method described once: its class, its names, and what experiments need to know about it.

A new method needs one entry in `METHODS`. The command line, the runner, the tuner, the benchmark and the report read
everything else from there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from torch import nn

from fsvi.errors import InvalidInputError
from fsvi.functions.contexts import Batch, Context, Mixture, Monochrome, Uniform
from fsvi.likelihoods import CategoricalPredictive, Likelihood
from fsvi.methods.base import Method
from fsvi.methods.duq import DUQ, KernelPredictive
from fsvi.methods.ensemble import Ensemble
from fsvi.methods.fbnn import FBNN
from fsvi.methods.fseb import FSEB
from fsvi.methods.fsvi import FSVI
from fsvi.methods.gfsvi import GFSVI
from fsvi.methods.ivon import IVON
from fsvi.methods.kl_weight import Tempered
from fsvi.methods.laplace import Laplace
from fsvi.methods.map import MAP
from fsvi.methods.mc_dropout import MCDropout
from fsvi.methods.mfvi import MFVI
from fsvi.methods.radial import RadialMFVI
from fsvi.methods.rank1 import Rank1
from fsvi.methods.search_space import GAMMA, VARIANCE, Choice, Range, Space
from fsvi.methods.sfsvi import SFSVI
from fsvi.methods.spg import SPG
from fsvi.methods.swag import SWAG
from fsvi.methods.vbll import VBLL
from fsvi.methods.vogn import VOGN
from fsvi.networks.network import Network
from fsvi.validation import check_choice

Net = nn.Module | Network | Callable[[], nn.Module | Network]
"""A network, or a function that makes one."""

_PARAMETER_SPACE: Space = {VARIANCE: Range(1e-3, 10.0), "num_samples": Choice((1, 5))}


@dataclass(frozen=True)
class MethodEntry:
    """What the library knows about a method besides its code.

    Attributes:
        name: The name on the command line and in result files.
        title: The name in tables and figures.
        method: The class.
        settings: Arguments that differ from the class's defaults.
        regression: Further arguments that differ where targets are real numbers.
        can_stack: Whether `fit_together` can train several copies in one pass.
        averages: Whether it averages parameters during training, which needs a high learning rate to the end.
        score: The name of the uncertainty score by which its authors rank inputs of a classification.
        search: What `fsvi tune` searches; empty where the method cannot be tuned.
        small_search: What it searches in addition where networks are so small that seeds are trained together.
    """

    name: str
    title: str
    method: Callable[..., Method]
    settings: Mapping[str, Any] = field(default_factory=dict)
    regression: Mapping[str, Any] = field(default_factory=dict)
    can_stack: bool = False
    averages: bool = False
    score: str = CategoricalPredictive.score_name
    search: Space = field(default_factory=dict)
    small_search: Space = field(default_factory=dict)

    @property
    def arguments(self) -> list[str]:
        """The settings that the class takes, after network and likelihood."""
        return list(inspect.signature(self.method).parameters)[2:]

    @property
    def takes_context(self) -> bool:
        """Whether the method looks at points other than the data."""
        return "context" in self.arguments


_ENTRIES = [
    MethodEntry("map", "MAP", MAP, can_stack=True, search={VARIANCE: Range(1e-3, 1e3)}),
    MethodEntry("mfvi", "MFVI", MFVI, can_stack=True, search=_PARAMETER_SPACE),
    MethodEntry(
        "mfvi-tempered", "MFVI tempered", MFVI, {"kl_weight": Tempered(0.1)}, can_stack=True, search=_PARAMETER_SPACE
    ),
    MethodEntry("mfvi-radial", "MFVI radial", RadialMFVI, can_stack=True, search=_PARAMETER_SPACE),
    MethodEntry(
        "mc-dropout",
        "MC dropout",
        MCDropout,
        regression={"rate": 0.05},  # a regression must tell its own noise from that of the masks
        can_stack=True,
        search={"rate": Range(0.01, 0.5, linear=True)},
    ),
    MethodEntry("swag", "SWAG", SWAG, averages=True, search={VARIANCE: Range(1e-3, 1e3)}),
    MethodEntry(
        "duq",
        "DUQ",
        DUQ,
        score=KernelPredictive.score_name,
        search={"length_scale": Range(0.05, 1.0), "gradient_penalty": Range(0.005, 0.5)},
    ),
    MethodEntry("laplace", "Laplace", Laplace, search={VARIANCE: Range(1e-3, 1e3)}),
    MethodEntry("vogn", "VOGN", VOGN, search={VARIANCE: Range(1e-3, 10.0), "damping": Range(1e-4, 1e-1)}),
    MethodEntry("ivon", "IVON", IVON, search={VARIANCE: Range(1e-3, 10.0), "initial_scale": Range(1e-2, 1.0)}),
    MethodEntry("rank1", "Rank-1", Rank1, search={VARIANCE: Range(1e-3, 1e3), "prior_std": Range(0.01, 1.0)}),
    MethodEntry("vbll", "VBLL", VBLL, search={VARIANCE: Range(1e-3, 1e2)}),
    MethodEntry(
        "spg",
        "SPG",
        SPG,
        can_stack=True,
        search={"num_context": Choice((8, 16, 32, 64)), "kl_weight": Range(1e-5, 1e-1)},
    ),
    MethodEntry(
        "fbnn",
        "fBNN",
        FBNN,
        can_stack=True,
        search={"num_context": Choice((8, 16, 32)), "kl_weight": Range(1e-5, 1e-1)},
    ),
    MethodEntry(
        "fs-eb",
        "FS-EB",
        FSEB,
        search={
            VARIANCE: Range(1e-2, 1e3),
            "num_context": Choice((4, 8, 16, 32, 64)),
            "kl_weight": Range(1e-5, 1e-1),
        },
    ),
    MethodEntry(
        "gfsvi",
        "GFSVI",
        GFSVI,
        can_stack=True,
        search={
            VARIANCE: Range(0.1, 100.0),
            GAMMA: Range(1e-5, 1e-1),
            "num_context": Choice((4, 8, 16, 32, 64)),
            "kl_weight": Range(1e-5, 1e-1),
            "num_samples": Choice((1, 5)),
        },
        small_search={
            "num_context": Choice((8, 16, 32, 64)),
            "num_samples": Choice((1, 4)),
            "stochastic": Choice(("all", "last_layer")),
        },
    ),
    MethodEntry(
        "fsvi",
        "FSVI",
        FSVI,
        can_stack=True,
        search={
            VARIANCE: Range(0.1, 100.0),
            "num_context": Choice((4, 8, 16, 32, 64)),
            "kl_weight": Range(1e-5, 1e-1),
            "num_samples": Choice((1, 5)),
        },
        small_search={
            "num_context": Choice((8, 16, 32, 64)),
            "num_samples": Choice((1, 4, 16)),
            "linearize": Choice(("jvp", "exact")),
            "stochastic": Choice(("all", "last_layer")),
        },
    ),
    MethodEntry("s-fsvi", "S-FSVI", SFSVI),
]
METHODS: dict[str, MethodEntry] = {entry.name: entry for entry in _ENTRIES}
"""Every method by its name; `ensemble:` before a name makes an ensemble of it."""

_ENSEMBLE = "ensemble:"


def method_names() -> list[str]:
    """Every name that `make_method` knows."""
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


def takes_context(name: str) -> bool:
    """Whether a method, or an ensemble's members, look at points other than the data."""
    return find_method(name).takes_context


def method_title(name: str) -> str:
    """A method's name in tables and figures: "MAP", "Deep ensemble", "FSVI ensemble"; or just `name`."""
    member = name.removeprefix(_ENSEMBLE)
    title = METHODS[member].title if member in METHODS else member
    if name == member:
        return title
    return "Deep ensemble" if member == "map" else f"{title} ensemble"


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
