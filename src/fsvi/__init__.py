"""Honest predictive uncertainty for neural networks by function-space variational inference."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fsvi import calibration, data, loggers, metrics, networks
    from fsvi.calibration import IntervalReferral, Referral, SetReferral
    from fsvi.diagnosis import Diagnosis, Finding, diagnose
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
    from fsvi.estimators import FSVIClassifier, FSVIRegressor
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
    from fsvi.machine import keep_memory
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
    from fsvi.scoring import ScoringReport, predict_files
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

_NAMES = {
    "fsvi.calibration": "IntervalReferral Referral SetReferral",
    "fsvi.machine": "keep_memory",
    "fsvi.diagnosis": "Diagnosis Finding diagnose",
    "fsvi.errors": (
        "DataNotFoundError FileFormatError FSVIError HeadError InvalidInputError NonFiniteLossError "
        "ProcessLostError SingularCovarianceError"
    ),
    "fsvi.estimators": "FSVIClassifier FSVIRegressor",
    "fsvi.functions": "contexts divergences kernels priors",
    "fsvi.likelihoods": (
        "Bernoulli BernoulliPredictive Categorical CategoricalPredictive Gaussian GaussianPredictive "
        "Likelihood MixturePredictive MultiHead Poisson PoissonPredictive Predictive StudentT "
        "StudentTPredictive Summary concatenate"
    ),
    "fsvi.methods": (
        "DUQ FBNN FSEB FSVI GFSVI IVON MAP MFVI SFSVI SPG SWAG VBLL VOGN Ensemble Laplace MCDropout "
        "Method RadialMFVI Rank1 Stds Tempered load make_method method_names"
    ),
    "fsvi.networks": "Network",
    "fsvi.scoring": "ScoringReport predict_files",
    "fsvi.training": ("Callback History Stepper TrainingState adamw cosine every_step fit fit_tasks sgd take_step"),
}
"""Where the names come from. They are imported when they are used, so that `fsvi --help` does not wait for torch."""
_PLACES = {name: module for module, names in _NAMES.items() for name in names.split()}

try:
    __version__ = version("fsvi")
except PackageNotFoundError:
    __version__ = "0+unknown"


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        found = getattr(import_module(_PLACES[name]), name)
    elif name.startswith("_"):
        raise AttributeError(f"module 'fsvi' has no attribute {name!r}")
    else:
        try:
            found = import_module(f"fsvi.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"fsvi.{name}":
                raise
            raise AttributeError(f"module 'fsvi' has no attribute {name!r}") from error
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def import_all() -> None:
    """Import every class that a file may describe."""
    for module in _NAMES:
        import_module(module)


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
