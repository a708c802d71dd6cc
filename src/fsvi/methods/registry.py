"""Every method by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from fsvi.functions.contexts import Context, Suitable
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
from fsvi.serialization import argument_names
from fsvi.validation import check_choice

Net = nn.Module | Network | Callable[[], nn.Module | Network]
"""A network, or a function that makes one."""


METHODS: dict[str, type[Method]] = {
    "map": MAP,
    "mfvi": MFVI,
    "mfvi-tempered": MFVI,
    "mfvi-radial": RadialMFVI,
    "mc-dropout": MCDropout,
    "swag": SWAG,
    "duq": DUQ,
    "laplace": Laplace,
    "vogn": VOGN,
    "ivon": IVON,
    "rank1": Rank1,
    "vbll": VBLL,
    "spg": SPG,
    "fbnn": FBNN,
    "fs-eb": FSEB,
    "gfsvi": GFSVI,
    "fmgp": FMGP,
    "fsvi": FSVI,
    "fsvi-fixed-mean": FixedMeanFSVI,
    "s-fsvi": SFSVI,
    "sngp": SNGP,
}
"""Every method by its name; `ensemble:` before a name makes an ensemble of it."""

_DIFFERENT: dict[str, dict[str, Any]] = {"mfvi-tempered": {"kl_weight": Tempered(0.1)}}
"""Settings that differ from the defaults of the class."""
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
    """The method called `name`.

    Args:
        name: One of `method_names()`.
        net: A network, or a function that makes networks. Given a network, an ensemble's first member starts from its
            parameters; the others start from copies that are initialized again, as PyTorch does it.
        likelihood: Of the targets.
        context: Where functions are compared with the prior; None is `contexts.Suitable()`, which looks at the training
            inputs. Methods that take no context ignore it.
        settings: Arguments of the method's constructor; for an ensemble also `size`.

    Examples:
        >>> net = fsvi.networks.mlp(2, (20,), 2)
        >>> type(fsvi.make_method("swag", net, fsvi.Categorical())).__name__
        'SWAG'
        >>> len(fsvi.make_method("ensemble:map", net, fsvi.Categorical(), size=3).members)
        3
    """
    networks, known, member = _fresh(net), setting_names(name), name.removeprefix(_ENSEMBLE)
    size = {"size": settings.pop("size")} if member != name and "size" in settings else {}
    for setting in settings:
        check_choice(f"setting of {name}", setting, known)
    if "context" in known:
        settings["context"] = Suitable() if context is None else context

    def make() -> Method:
        return METHODS[member](next(networks), likelihood, **{**_DIFFERENT.get(member, {}), **settings})

    return make() if member == name else Ensemble(make, **size)


def setting_names(name: str) -> list[str]:
    """The arguments of a method, or of an ensemble's members, after network and likelihood."""
    return argument_names(METHODS[check_choice("method", str(name).removeprefix(_ENSEMBLE), METHODS)])[2:]


def _fresh(net: Net) -> Iterator[nn.Module | Network]:
    """Networks, each with parameters of its own."""
    if not isinstance(net, (nn.Module, Network)):
        while True:
            yield net()
    yield net
    while True:
        yield Network.wrap(net).redrawn()
