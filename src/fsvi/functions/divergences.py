"""Divergences between distributions of function values: what pulls the posterior over functions to the prior.

Examples:
    >>> net = fsvi.networks.mlp(2, (20,), 2)
    >>> method = fsvi.GFSVI(net, fsvi.Categorical(), divergence=fsvi.divergences.RegularizedKL(gamma=0.1))
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fsvi.errors import InvalidInputError
from fsvi.functions.gaussian import FunctionGaussian, cholesky, log_determinant
from fsvi.networks.devices import back
from fsvi.serialization import Configurable
from fsvi.validation import check_choice, check_count, check_positive


class Divergence(Configurable, ABC):
    """A number that says how far the posterior over functions is from the prior, at a set of context points.

    To add one, implement `between`. Constructor arguments must be kept as attributes of the same name, so that
    `save` can write them down.
    """

    num_draws: int = 1
    """over how many draws of the feature layers a method averages the divergence, where these layers are random"""

    @abstractmethod
    def between(self, q: FunctionGaussian, p: FunctionGaussian) -> Tensor:
        """The divergence of the posterior `q` from the prior `p`, summed over outputs: a scalar with gradients.

        Args:
            q: The posterior at the context points.
            p: The prior at the same points.
        """


class KL(Divergence):
    """The Kullback–Leibler divergence KL(q(f(X)) ‖ p(f(X))) at the context points X, in closed form and float64.

    Args:
        nugget: The variance added at every point, to both covariances. It keeps them invertible where context points
            are close to each other.
        covariance: "full" uses the covariance between context points; "diagonal" treats the points as independent,
            which is cheaper and ignores how smooth the functions are.
        num_draws: Over how many draws of the feature layers the divergence is averaged, where these are random.
    """

    def __init__(
        self, nugget: float = 1e-2, covariance: Literal["full", "diagonal"] = "full", num_draws: int = 1
    ) -> None:
        self.nugget = check_positive("nugget", nugget, zero=True)
        self.covariance = check_choice("covariance", covariance, ("full", "diagonal"))
        self.num_draws = check_count("num_draws", num_draws)

    def between(self, q: FunctionGaussian, p: FunctionGaussian) -> Tensor:
        """KL(q ‖ p), summed over outputs."""
        return (gaussian_kl if self.covariance == "full" else diagonal_kl)(q, p, self.nugget)


class RegularizedKL(Divergence):
    """The regularized KL divergence of Cinquin and Bamler (2025), which exists for any two Gaussian processes.

    With M context points, γM·I is added to both covariances:

        ½[(m_q − m_p)ᵀ (Σ_p + γM I)⁻¹ (m_q − m_p) + tr((Σ_p + γM I)⁻¹ (Σ_q + γM I)) − M
          − log|Σ_q + γM I| + log|Σ_p + γM I|].

    `KL` adds a constant instead. Between the functions of a network and a Gaussian process, that KL grows without bound
    with the number of points, because their supports differ. This one converges: eigenvalues of a covariance matrix
    grow like M, and so does the regularizer.

    Args:
        gamma: γ. Smaller values follow the prior more closely and make the divergence larger.
        num_draws: Over how many draws of the feature layers the divergence is averaged, where these are random.
    """

    def __init__(self, gamma: float = 1e-3, num_draws: int = 1) -> None:
        self.gamma = check_positive("gamma", gamma)
        self.num_draws = check_count("num_draws", num_draws)

    def between(self, q: FunctionGaussian, p: FunctionGaussian) -> Tensor:
        """The regularized KL of q from p, summed over outputs."""
        return gaussian_kl(q, p, self.gamma * q.num_points)


def gaussian_kl(q: FunctionGaussian, p: FunctionGaussian, nugget: float) -> Tensor:
    """KL(q‖p) summed over outputs, ½ Σₖ [tr(Σp⁻¹Σq) + (mp−mq)ᵀΣp⁻¹(mp−mq) − K + log|Σp| − log|Σq|], in float64.

    `nugget`·I is added to *both* covariances. Σp is factored once when all outputs share it, Σq in one batch.
    """
    like, q, p = q.mean, q.prepared(nugget), p.prepared(nugget)
    (points, outputs), difference = q.mean.shape, (q.mean - p.mean).T
    root = cholesky(p.covariance)
    inverse = torch.cholesky_inverse(root)
    trace = (inverse * q.covariance).sum((1, 2))
    squared = difference * (inverse @ difference[:, :, None])[:, :, 0]
    logs = log_determinant(root) - log_determinant(cholesky(q.covariance))
    return back(0.5 * ((trace + logs - points).expand(outputs).sum() + squared.sum()), like)


def diagonal_kl(q: FunctionGaussian, p: FunctionGaussian, nugget: float) -> Tensor:
    """The same without correlations between points: K·Q univariate Gaussians."""
    like, q, p = q.mean, q.prepared(nugget), p.prepared(nugget)
    ratio = q.variance() / p.variance()
    return back(0.5 * (ratio + (p.mean - q.mean).T.square() / p.variance() - 1 - ratio.log()).sum(), like)


# The weight of a divergence -------------------------------------------------------------------------------------------


class Tempered(Configurable):
    """The weight temperature/N, where N is the number of training examples.

    Temperature 1 is the evidence lower bound. A lower one gives a cold posterior, which trusts the data more; a higher
    one a warm posterior.

    Args:
        temperature: The multiple of 1/N.

    Examples:
        >>> net = fsvi.networks.mlp(2, (20,), 2)
        >>> method = fsvi.MFVI(net, fsvi.Categorical(), kl_weight=fsvi.Tempered(0.1))
    """

    def __init__(self, temperature: float) -> None:
        self.temperature = check_positive("temperature", temperature, zero=True)

    def __repr__(self) -> str:
        return f"Tempered({self.temperature!r})"


KLWeight: TypeAlias = float | Tempered | None
"""A number is the weight in the loss per example; None is 1/N, the evidence lower bound; `Tempered(t)` is t/N."""


def check_kl_weight(kl_weight: KLWeight) -> KLWeight:
    """Check a weight that a user gave."""
    if kl_weight is None or isinstance(kl_weight, Tempered):
        return kl_weight
    if isinstance(kl_weight, bool) or not isinstance(kl_weight, (int, float)):
        raise InvalidInputError(
            f"kl_weight={kl_weight!r} must be a number, None for 1/N, or fsvi.Tempered(t) for t/N, N training examples."
        )
    return check_positive("kl_weight", kl_weight, zero=True)


def kl_weight_value(kl_weight: KLWeight, num_data: float) -> float:
    """The factor of the divergence in the loss per example, with N = `num_data` training examples."""
    if kl_weight is None:
        return 1 / num_data
    return kl_weight.temperature / num_data if isinstance(kl_weight, Tempered) else kl_weight
