"""Honest predictive uncertainty for neural networks by function-space variational inference."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers; the same names as below
    from fsvi import calibration as calibration
    from fsvi import data as data
    from fsvi import errors as errors
    from fsvi import likelihoods as likelihoods
    from fsvi import metrics as metrics
    from fsvi import networks as networks
    from fsvi import training as training
    from fsvi.calibration import Referral as Referral
    from fsvi.diagnosis import diagnose as diagnose
    from fsvi.estimators import FSVIClassifier as FSVIClassifier
    from fsvi.estimators import FSVIRegressor as FSVIRegressor
    from fsvi.functions import contexts as contexts
    from fsvi.functions import divergences as divergences
    from fsvi.functions import kernels as kernels
    from fsvi.functions import priors as priors
    from fsvi.likelihoods import Bernoulli as Bernoulli
    from fsvi.likelihoods import Categorical as Categorical
    from fsvi.likelihoods import Gaussian as Gaussian
    from fsvi.likelihoods import MultiHead as MultiHead
    from fsvi.likelihoods import Poisson as Poisson
    from fsvi.likelihoods import StudentT as StudentT
    from fsvi.methods import DUQ as DUQ
    from fsvi.methods import FBNN as FBNN
    from fsvi.methods import FMGP as FMGP
    from fsvi.methods import FSEB as FSEB
    from fsvi.methods import FSVI as FSVI
    from fsvi.methods import GFSVI as GFSVI
    from fsvi.methods import IVON as IVON
    from fsvi.methods import MAP as MAP
    from fsvi.methods import MFVI as MFVI
    from fsvi.methods import SFSVI as SFSVI
    from fsvi.methods import SNGP as SNGP
    from fsvi.methods import SPG as SPG
    from fsvi.methods import SWAG as SWAG
    from fsvi.methods import VBLL as VBLL
    from fsvi.methods import VOGN as VOGN
    from fsvi.methods import Ensemble as Ensemble
    from fsvi.methods import Laplace as Laplace
    from fsvi.methods import MCDropout as MCDropout
    from fsvi.methods import Method as Method
    from fsvi.methods import RadialMFVI as RadialMFVI
    from fsvi.methods import Rank1 as Rank1
    from fsvi.methods import Tempered as Tempered
    from fsvi.methods import load as load
    from fsvi.methods import make_method as make_method
    from fsvi.methods import method_names as method_names
    from fsvi.networks import Network as Network
    from fsvi.scoring import predict_files as predict_files
    from fsvi.training import fit_tasks as fit_tasks
    from fsvi.training.fit import fit as fit

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
__all__ = sorted([*_PLACES, "calibration", "data", "errors", "likelihoods", "metrics", "networks", "training"])
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
