"""Predictive distributions: one class per likelihood, all with the same interface."""

from fsvi.predictive.base import Predictive, concatenate, mixture, select
from fsvi.predictive.bernoulli import BernoulliPredictive
from fsvi.predictive.categorical import CategoricalPredictive
from fsvi.predictive.gaussian import GaussianPredictive
from fsvi.predictive.numeric import MixturePredictive, NumericPredictive
from fsvi.predictive.poisson import PoissonPredictive
from fsvi.predictive.student_t import StudentTPredictive
from fsvi.predictive.summary import Summary, gathered

__all__ = [
    "BernoulliPredictive",
    "CategoricalPredictive",
    "GaussianPredictive",
    "MixturePredictive",
    "NumericPredictive",
    "PoissonPredictive",
    "Predictive",
    "StudentTPredictive",
    "Summary",
    "concatenate",
    "gathered",
    "mixture",
    "select",
]
