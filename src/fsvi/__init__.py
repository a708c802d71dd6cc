"""Honest predictive uncertainty for neural networks by function-space variational inference."""

from importlib.metadata import PackageNotFoundError, version

from fsvi import data, networks
from fsvi.errors import (
    FileFormatError,
    FSVIError,
    HeadError,
    InvalidInputError,
    NonFiniteLossError,
    SingularCovarianceError,
)
from fsvi.functions import contexts, priors
from fsvi.likelihoods import Categorical, Gaussian, Likelihood
from fsvi.methods import (
    DUQ,
    FBNN,
    FSVI,
    MAP,
    MFVI,
    SPG,
    SWAG,
    VOGN,
    Ensemble,
    Laplace,
    MCDropout,
    Method,
    RadialMFVI,
    Rank1,
    load,
    make_method,
    method_names,
)
from fsvi.predictive import CategoricalPredictive, GaussianPredictive, Predictive
from fsvi.training import History, cosine, fit

try:
    __version__ = version("fsvi")
except PackageNotFoundError:
    __version__ = "0+unknown"

__all__ = [
    "DUQ",
    "FBNN",
    "FSVI",
    "MAP",
    "MFVI",
    "SPG",
    "SWAG",
    "VOGN",
    "Categorical",
    "CategoricalPredictive",
    "Ensemble",
    "FSVIError",
    "FileFormatError",
    "Gaussian",
    "GaussianPredictive",
    "HeadError",
    "History",
    "InvalidInputError",
    "Laplace",
    "Likelihood",
    "MCDropout",
    "Method",
    "NonFiniteLossError",
    "Predictive",
    "RadialMFVI",
    "Rank1",
    "SingularCovarianceError",
    "contexts",
    "cosine",
    "data",
    "fit",
    "load",
    "make_method",
    "method_names",
    "networks",
    "priors",
]
