"""Honest predictive uncertainty for neural networks by function-space variational inference."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from fsvi import calibration, data, loggers, networks
from fsvi.cost import estimate_cost, keep_memory
from fsvi.errors import (
    DataNotFoundError,
    FileFormatError,
    FSVIError,
    HeadError,
    InvalidInputError,
    NonFiniteLossError,
    ProcessLostError,
    SingularCovarianceError,
)
from fsvi.functions import contexts, divergences, kernels, priors
from fsvi.likelihoods import (
    Bernoulli,
    BernoulliPredictive,
    Categorical,
    CategoricalPredictive,
    Gaussian,
    GaussianPredictive,
    Likelihood,
    MixturePredictive,
    MultiHead,
    Poisson,
    PoissonPredictive,
    Predictive,
    StudentT,
    StudentTPredictive,
    Summary,
    concatenate,
)
from fsvi.methods import (
    DUQ,
    FBNN,
    FSEB,
    FSVI,
    GFSVI,
    IVON,
    MAP,
    MFVI,
    SFSVI,
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
    Stds,
    Tempered,
    load,
    make_method,
    method_names,
)
from fsvi.networks import Network
from fsvi.training import (
    Callback,
    History,
    Stepper,
    TrainingState,
    adamw,
    cosine,
    every_step,
    fit,
    fit_tasks,
    sgd,
    take_step,
)

if TYPE_CHECKING:
    from fsvi import metrics
    from fsvi.diagnosis import Diagnosis, Finding, diagnose
    from fsvi.estimators import FSVIClassifier, FSVIRegressor
    from fsvi.referral import IntervalReferral, Referral, SetReferral
    from fsvi.scoring import ScoringReport, predict_files

_LATER = {
    "Diagnosis": "fsvi.diagnosis",
    "FSVIClassifier": "fsvi.estimators",
    "FSVIRegressor": "fsvi.estimators",
    "Finding": "fsvi.diagnosis",
    "IntervalReferral": "fsvi.referral",
    "Referral": "fsvi.referral",
    "ScoringReport": "fsvi.scoring",
    "SetReferral": "fsvi.referral",
    "predict_files": "fsvi.scoring",
    "diagnose": "fsvi.diagnosis",
    "metrics": "fsvi.metrics",
}
"""What needs scikit-learn, which takes a second to import, by the module that it is in."""

try:
    __version__ = version("fsvi")
except PackageNotFoundError:
    __version__ = "0+unknown"


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'fsvi' has no attribute {name!r}")
    module = import_module(_LATER[name])
    return module if _LATER[name] == f"fsvi.{name}" else getattr(module, name)


__all__ = [
    "DUQ",
    "FBNN",
    "FSEB",
    "FSVI",
    "GFSVI",
    "IVON",
    "MAP",
    "MFVI",
    "SFSVI",
    "SPG",
    "SWAG",
    "VBLL",
    "VOGN",
    "Bernoulli",
    "BernoulliPredictive",
    "Callback",
    "Categorical",
    "CategoricalPredictive",
    "DataNotFoundError",
    "Diagnosis",
    "Ensemble",
    "FSVIClassifier",
    "FSVIError",
    "FSVIRegressor",
    "FileFormatError",
    "Finding",
    "Gaussian",
    "GaussianPredictive",
    "HeadError",
    "History",
    "IntervalReferral",
    "InvalidInputError",
    "Laplace",
    "Likelihood",
    "MCDropout",
    "Method",
    "MixturePredictive",
    "MultiHead",
    "Network",
    "NonFiniteLossError",
    "Poisson",
    "PoissonPredictive",
    "Predictive",
    "ProcessLostError",
    "RadialMFVI",
    "Rank1",
    "Referral",
    "ScoringReport",
    "SetReferral",
    "SingularCovarianceError",
    "Stds",
    "Stepper",
    "StudentT",
    "StudentTPredictive",
    "Summary",
    "Tempered",
    "TrainingState",
    "adamw",
    "calibration",
    "concatenate",
    "contexts",
    "cosine",
    "data",
    "diagnose",
    "divergences",
    "estimate_cost",
    "every_step",
    "fit",
    "fit_tasks",
    "keep_memory",
    "kernels",
    "load",
    "loggers",
    "make_method",
    "method_names",
    "metrics",
    "networks",
    "predict_files",
    "priors",
    "sgd",
    "take_step",
]
