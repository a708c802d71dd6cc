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
from fsvi.methods import FSVI, MAP, Method, load
from fsvi.predictive import CategoricalPredictive, GaussianPredictive, Predictive
from fsvi.training import History, cosine, fit

try:
    __version__ = version("fsvi")
except PackageNotFoundError:
    __version__ = "0+unknown"

__all__ = [
    "FSVI",
    "MAP",
    "Categorical",
    "CategoricalPredictive",
    "FSVIError",
    "FileFormatError",
    "Gaussian",
    "GaussianPredictive",
    "HeadError",
    "History",
    "InvalidInputError",
    "Likelihood",
    "Method",
    "NonFiniteLossError",
    "Predictive",
    "SingularCovarianceError",
    "contexts",
    "cosine",
    "data",
    "fit",
    "load",
    "networks",
    "priors",
]
