"""Honest predictive uncertainty for neural networks by function-space variational inference."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fsvi import calibration, data, errors, likelihoods, metrics, networks, training
    from fsvi.calibration import Referral
    from fsvi.diagnosis.diagnose import diagnose
    from fsvi.estimators import FSVIClassifier, FSVIRegressor
    from fsvi.functions import contexts, divergences, kernels, priors
    from fsvi.likelihoods import Bernoulli, Categorical, Gaussian, MultiHead, Poisson, StudentT
    from fsvi.methods import (
        DUQ,
        FBNN,
        FMGP,
        FSEB,
        FSVI,
        GFSVI,
        IVON,
        MAP,
        MFVI,
        SFSVI,
        SNGP,
        SPG,
        SWAG,
        VBLL,
        VOGN,
        Ensemble,
        Laplace,
        MCDropout,
        Method,
        RadialMFVI,
        Rank1,
        Tempered,
        load,
        make_method,
        method_names,
    )
    from fsvi.networks import Network
    from fsvi.scoring import predict_files
    from fsvi.training import fit_tasks
    from fsvi.training.fit import fit

_NAMES = {
    "fsvi.calibration": "Referral",
    "fsvi.diagnosis": "diagnose",
    "fsvi.estimators": "FSVIClassifier FSVIRegressor",
    "fsvi.functions": "contexts divergences kernels priors",
    "fsvi.likelihoods": "Bernoulli Categorical Gaussian MultiHead Poisson StudentT",
    "fsvi.methods": (
        "DUQ FBNN FMGP FSEB FSVI GFSVI IVON MAP MFVI SFSVI SNGP SPG SWAG VBLL VOGN "
        "Ensemble Laplace MCDropout Method RadialMFVI Rank1 Tempered load make_method method_names"
    ),
    "fsvi.networks": "Network",
    "fsvi.scoring": "predict_files",
    "fsvi.training": "fit fit_tasks",
}
"""Where the names come from. They are imported when they are used, so that `fsvi --help` does not wait for torch."""
_PLACES = {name: module for module, names in _NAMES.items() for name in names.split()}
_MODULES = {module.name for module in iter_modules(__path__) if not module.name.startswith("_")}

try:
    __version__ = version("fsvi")
except PackageNotFoundError:
    __version__ = "0+unknown"


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        found = getattr(import_module(_PLACES[name]), name)
    elif name in _MODULES:
        found = import_module(f"fsvi.{name}")
    else:
        raise AttributeError(f"module 'fsvi' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES, "__version__"})


__all__ = [
    "DUQ",
    "FBNN",
    "FMGP",
    "FSEB",
    "FSVI",
    "GFSVI",
    "IVON",
    "MAP",
    "MFVI",
    "SFSVI",
    "SNGP",
    "SPG",
    "SWAG",
    "VBLL",
    "VOGN",
    "Bernoulli",
    "Categorical",
    "Ensemble",
    "FSVIClassifier",
    "FSVIRegressor",
    "Gaussian",
    "Laplace",
    "MCDropout",
    "Method",
    "MultiHead",
    "Network",
    "Poisson",
    "RadialMFVI",
    "Rank1",
    "Referral",
    "StudentT",
    "Tempered",
    "calibration",
    "contexts",
    "data",
    "diagnose",
    "divergences",
    "errors",
    "fit",
    "fit_tasks",
    "kernels",
    "likelihoods",
    "load",
    "make_method",
    "method_names",
    "metrics",
    "networks",
    "predict_files",
    "priors",
    "training",
]
