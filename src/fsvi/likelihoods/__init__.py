"""p(y|f), how targets arise from the network's outputs, and the predictions that they give: one file per family.

Examples:
    >>> p = fsvi.likelihoods.CategoricalPredictive(torch.randn(100, 5, 3))  # logits of 100 draws, 5 inputs, 3 classes
    >>> p.mean.shape, p.entropy().shape
    (torch.Size([5, 3]), torch.Size([5]))
"""

from fsvi.likelihoods.base import Likelihood, weighted
from fsvi.likelihoods.bernoulli import Bernoulli, BernoulliPredictive
from fsvi.likelihoods.categorical import Categorical, CategoricalPredictive, MultiHead
from fsvi.likelihoods.gaussian import Gaussian, GaussianPredictive
from fsvi.likelihoods.numbers import MixturePredictive, NumberLikelihood
from fsvi.likelihoods.poisson import Poisson, PoissonPredictive
from fsvi.likelihoods.predictive import Predictive, Summary, concatenate, gathered, mixture
from fsvi.likelihoods.student_t import StudentT, StudentTPredictive

__all__ = [
    "Bernoulli",
    "BernoulliPredictive",
    "Categorical",
    "CategoricalPredictive",
    "Gaussian",
    "GaussianPredictive",
    "Likelihood",
    "MixturePredictive",
    "MultiHead",
    "NumberLikelihood",
    "Poisson",
    "PoissonPredictive",
    "Predictive",
    "StudentT",
    "StudentTPredictive",
    "Summary",
    "concatenate",
    "gathered",
    "mixture",
    "weighted",
]
