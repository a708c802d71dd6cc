"""p(y|f): how targets arise from the network's outputs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fsvi.errors import InvalidInputError
from fsvi.predictive import CategoricalPredictive, GaussianPredictive, Predictive
from fsvi.serialization import Configurable, plain
from fsvi.validation import as_tensor, check_labels, check_positive


class Likelihood(Configurable, nn.Module, ABC):
    """The distribution of a target given the network's outputs f at its input."""

    takes_weights: ClassVar[bool] = False
    """Whether `nll` averages with the `weights` of a minibatch's examples, by `average`"""
    weights: Tensor | None = None
    """Weights (n,) of the examples of the minibatch in hand, 1 on average over all data; None: all are equal"""

    def bind(self, num_outputs: int) -> None:
        """Get ready for a network with so many outputs; called once, by the method that uses the likelihood."""

    @abstractmethod
    def check_targets(self, y: Tensor, num_outputs: int) -> Tensor:
        """The targets in the form `nll` wants, or an error that says what is wrong with them."""

    @abstractmethod
    def nll(self, f: Tensor, y: Tensor) -> Tensor:
        """−log p(y|f), averaged over everything but the last axis of `f`, which may be (..., n, outputs): a scalar."""

    def average(self, losses: Tensor) -> Tensor:
        """The mean of losses (..., n), each multiplied by its example's weight if there are `weights`."""
        return losses.mean() if self.weights is None else (losses * self.weights).mean()

    @abstractmethod
    def predictive(self, f: Tensor) -> Predictive:
        """The predictive distribution of function draws `f` (samples, n, outputs)."""

    def fisher_root(self, f: Tensor) -> Tensor:
        """S, (n, outputs, columns), with S Sᵀ the Fisher information of `f` (n, outputs) in a target: its curvature."""
        raise InvalidInputError(f"{type(self).__name__} has no `fisher_root`, which methods with curvature need.")


class Categorical(Likelihood):
    """Integer labels 0..C−1, or a probability of each class; the network's outputs are logits."""

    takes_weights = True

    def check_targets(self, y: Tensor, num_outputs: int) -> Tensor:
        """Labels as int64 (n,), or probabilities (n, C)."""
        if y.dim() == 2 and y.shape[1] == num_outputs > 1 and y.is_floating_point():
            if not bool((y >= 0).all()) or not torch.allclose(y.sum(1), y.new_ones(len(y)), atol=1e-4):
                raise InvalidInputError(
                    "targets with a column per class must be probabilities that sum to 1 in each row."
                )
            return y
        return check_labels(y, num_outputs)

    def nll(self, f: Tensor, y: Tensor) -> Tensor:
        """Mean cross-entropy."""
        targets = y.expand(f.shape).flatten(0, -2) if y.is_floating_point() else y.expand(f.shape[:-1]).reshape(-1)
        flat = f.reshape(-1, f.shape[-1])
        if self.weights is None:
            return F.cross_entropy(flat, targets)
        return self.average(F.cross_entropy(flat, targets, reduction="none").reshape(f.shape[:-1]))

    def predictive(self, f: Tensor) -> CategoricalPredictive:
        """Class probabilities averaged over draws."""
        return CategoricalPredictive(f)

    def fisher_root(self, f: Tensor) -> Tensor:
        """diag(√p) − p √pᵀ, a root of diag(p) − p pᵀ."""
        p = f.softmax(-1)
        return p.sqrt().diag_embed() - p[:, :, None] * p.sqrt()[:, None, :]


class Gaussian(Likelihood):
    """Real targets with Gaussian noise.

    `noise` is the noise's standard deviation, a number or one for each output; with `learn_noise` it is where learning
    starts, one value an output. Where data are few a learned noise may shrink to what is left of errors on the training
    data; `least_noise` is where it stops. `heteroscedastic=True` reads the noise from the network instead: two outputs
    for each target, first all the means, then all the log variances.
    """

    takes_weights = True
    log_noise: Tensor
    """½ log(noise² − least_noise²)"""

    def __init__(
        self,
        noise: float | Sequence[float] = 0.1,
        learn_noise: bool = False,
        heteroscedastic: bool = False,
        least_noise: float = 0.0,
    ) -> None:
        super().__init__()
        values = as_tensor("noise", noise).float()
        if values.dim() > 1 or not bool((values > 0).all() and values.isfinite().all()):
            raise InvalidInputError(f"noise={noise} must be positive: it is the noise's standard deviation.")
        if heteroscedastic and learn_noise:
            raise InvalidInputError("heteroscedastic noise comes from the network: leave learn_noise out.")
        self.least_noise = check_positive("least_noise", least_noise, zero=True)
        if self.least_noise and not (learn_noise and bool((values > self.least_noise).all())):
            raise InvalidInputError(
                f"least_noise={least_noise} is for a noise that is learned and starts above it: pass learn_noise=True "
                f"and a larger noise than {noise}, or leave it out."
            )
        self._noise = noise
        self.learn_noise = learn_noise
        self.heteroscedastic = heteroscedastic
        self._set(values)

    def config(self) -> dict[str, object]:
        """The constructor's arguments; the learned noise is kept with the tensors."""
        names = ("learn_noise", "heteroscedastic", "least_noise")
        settings = {"noise": plain(self._noise), **{name: getattr(self, name) for name in names}}
        return {"class": self.class_name(), "settings": settings}

    def bind(self, num_outputs: int) -> None:
        """One noise an output."""
        if self.heteroscedastic:
            if num_outputs % 2:
                raise InvalidInputError(
                    f"heteroscedastic noise needs two outputs a target; the network has {num_outputs}."
                )
            return
        given = torch.as_tensor(self._noise, dtype=self.log_noise.dtype, device=self.log_noise.device)
        if given.dim() == 1 and len(given) != num_outputs:
            raise InvalidInputError(f"noise has {len(given)} values for a network with {num_outputs} outputs.")
        self._set(given.expand(num_outputs))

    @property
    def noise(self) -> Tensor:
        """The noise's standard deviation, one for each output."""
        return self._log_noise().detach().exp()

    def check_targets(self, y: Tensor, num_outputs: int) -> Tensor:
        """Targets as floats (n, targets)."""
        if y.is_complex():
            raise InvalidInputError(f"targets have type {y.dtype}; Gaussian needs real numbers.")
        targets = num_outputs // 2 if self.heteroscedastic else num_outputs
        y = y if y.is_floating_point() else y.float()
        y = y.unsqueeze(1) if y.dim() == 1 else y
        if y.dim() != 2 or y.shape[1] != targets:
            raise InvalidInputError(f"targets have shape {tuple(y.shape)}; this network predicts (n, {targets}).")
        if not bool(y.isfinite().all()):
            raise InvalidInputError("targets hold NaN or infinite values: clean or drop those rows.")
        return y

    def nll(self, f: Tensor, y: Tensor) -> Tensor:
        """Mean over inputs of −log N(y; f, noise²), summed over targets."""
        mean, log_noise = self._moments(f)
        squared = (y - mean).square() * (-2 * log_noise).exp()
        losses = (0.5 * squared + log_noise + 0.5 * math.log(2 * math.pi)).expand(mean.shape).sum(-1)
        return self.average(losses)

    def predictive(self, f: Tensor) -> GaussianPredictive:
        """Mixture of Gaussians."""
        mean, log_noise = self._moments(f)
        return GaussianPredictive(mean.detach(), (2 * log_noise.detach()).exp())

    def fisher_root(self, f: Tensor) -> Tensor:
        """1/noise for every mean, and √½ for every log variance where those are outputs."""
        mean, log_noise = self._moments(f)
        roots = (-log_noise.detach()).exp().expand(mean.shape)
        roots = torch.cat([roots, torch.full_like(roots, 0.5**0.5)], dim=-1) if self.heteroscedastic else roots
        return roots.diag_embed()

    def _moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        if not self.heteroscedastic:
            return f, self._log_noise()
        mean, log_variance = f.chunk(2, dim=-1)
        return mean, 0.5 * log_variance

    def _log_noise(self) -> Tensor:
        """log noise; smooth in what is learned, so that a noise that came close to the least can grow again."""
        if not self.least_noise:
            return self.log_noise
        least = torch.full_like(self.log_noise, math.log(self.least_noise))
        return 0.5 * torch.logaddexp(2 * self.log_noise, 2 * least)

    def _set(self, noise: Tensor) -> None:
        log_noise = 0.5 * (noise.square() - self.least_noise**2).log() if self.least_noise else noise.log()
        if self.learn_noise:
            self.log_noise = nn.Parameter(log_noise)
        else:
            self.register_buffer("log_noise", log_noise)


@contextmanager
def weighted(module: nn.Module, weights: Tensor | None) -> Iterator[None]:
    """While a step is made, let all likelihoods in `module` know the weights of the minibatch's examples."""
    likelihoods = [] if weights is None else [part for part in module.modules() if isinstance(part, Likelihood)]
    for likelihood in likelihoods:
        likelihood.weights = weights
    try:
        yield
    finally:
        for likelihood in likelihoods:
            likelihood.weights = None
