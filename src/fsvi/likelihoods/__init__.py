"""p(y|f): how targets arise from the network's outputs."""

from fsvi.likelihoods.base import Likelihood, NumberLikelihood, weighted
from fsvi.likelihoods.bernoulli import Bernoulli
from fsvi.likelihoods.categorical import Categorical
from fsvi.likelihoods.gaussian import Gaussian
from fsvi.likelihoods.multi_head import MultiHead
from fsvi.likelihoods.poisson import Poisson
from fsvi.likelihoods.student_t import StudentT

__all__ = [
    "Bernoulli",
    "Categorical",
    "Gaussian",
    "Likelihood",
    "MultiHead",
    "NumberLikelihood",
    "Poisson",
    "StudentT",
    "weighted",
]
