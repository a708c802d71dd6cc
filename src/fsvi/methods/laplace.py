"""Laplace's approximation with the generalized Gauss–Newton matrix (Immer, Korzepa & Bauer, 2020; Daxberger, 2021)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from fsvi.errors import InvalidInputError
from fsvi.export import Functions
from fsvi.likelihoods import Likelihood
from fsvi.methods.base import DataPass
from fsvi.methods.map import MAP, PointEstimate
from fsvi.networks.devices import precise_dtype
from fsvi.networks.modes import evaluating
from fsvi.networks.network import Network
from fsvi.validation import check_choice, check_inputs, check_type
from fsvi.posteriors import Curvature, Diagonal, Full, GaussNewton, Kronecker, WeightLayer, record, weight_layers

Structure = Literal["last_layer", "kron", "diagonal"]
Integral = Literal["mc", "probit"]

_CURVATURES: dict[str, Callable[[WeightLayer], Curvature]] = {
    "last_layer": Full,
    "kron": Kronecker,
    "diagonal": Diagonal,
}
_NUMBERS_AT_ONCE = 2**24
"""The most numbers that draws of the parameters may have, or derivatives of the outputs."""
_MOST_INPUTS = 512


class Laplace(PointEstimate):
    """Trains as `MAP`, to the mode θ*, and then uses the Gaussian N(θ*, (H + δI)⁻¹) as the posterior.

    H = Σₙ Jₙᵀ Λₙ Jₙ is the generalized Gauss–Newton matrix, J the Jacobian of the outputs at θ* and Λ the likelihood's
    Fisher information. The prior's precision δ is 1/`prior_variance`, or the one of the largest evidence,

        log p(D) ≈ log p(D|θ*) − ½ δ‖θ*‖² + ½ P log δ − ½ log|H + δI|,    P parameters in H.

    Predictions are those of the network linearized at θ*, f(x) ~ N(f(x; θ*), J (H + δI)⁻¹ Jᵀ). They cost a backward
    pass for each output, as far down as there are random layers.

    Before training, it predicts like `MAP`; `from_trained` takes a trained `MAP`. fsvi has its own implementation,
    which agrees with laplace-torch. That library would bring a dozen packages, one of them pinned to a pre-release, and
    it does not share draws between inputs.

    Args:
        net: The network, an `nn.Module` or an `fsvi.Network`; it is copied.
        likelihood: The distribution of targets given the network's outputs.
        prior_variance: The variance of the Gaussian prior over parameters; None leaves it out of training.
        structure: Which part of H is kept. "last_layer" keeps all of it for the last layer, whose eigenvectors cost
            O((features · outputs)³). "kron" keeps Kronecker products and "diagonal" the diagonal, layer by layer, for
            the weights and biases of all dense layers and two-dimensional convolutions. Other parameters stay at θ*.
        integral: How probabilities are averaged: "mc" by draws f(x; θ*) + J (θ − θ*), functions that share θ over all
            inputs, or for classes "probit", by the closed form softmax(f / √(1 + π/8 · Var f)), as a single draw.
        optimize_prior: Whether δ is the one of the largest evidence.
    """

    takes_weights = False

    posterior: GaussNewton | None

    def __init__(
        self,
        net: nn.Module | Network,
        likelihood: Likelihood,
        *,
        prior_variance: float | None = 1.0,
        structure: Structure = "last_layer",
        integral: Integral = "mc",
        optimize_prior: bool = True,
    ) -> None:
        super().__init__(net, likelihood, prior_variance)
        self.structure = check_choice("structure", structure, _CURVATURES)
        self.integral = check_choice("integral", integral, ("mc", "probit"))
        self.optimize_prior = optimize_prior
        if prior_variance is None and not optimize_prior:
            raise InvalidInputError("Laplace needs a prior: give prior_variance a number, or set optimize_prior=True.")
        if integral == "probit" and not likelihood.has_probit:
            kind = type(likelihood).__name__
            raise InvalidInputError(f'integral="probit" is for classes, not for {kind}: use integral="mc".')
        self.build(self.network)

    def build(self, network: Network) -> None:
        """Start without a posterior."""
        super().build(network)
        self.posterior = None

    @classmethod
    def from_trained(
        cls,
        trained: MAP,
        data: Any,
        structure: Structure = "last_layer",
        integral: Integral = "mc",
        optimize_prior: bool = True,
    ) -> Laplace:
        """The approximation around a trained `MAP`.

        Args:
            trained: The trained `MAP`. Wrap a network that was trained without fsvi: `fsvi.MAP(net, likelihood)`.
            data: Its training data: a pair (x, y), a Dataset or a DataLoader.
            structure: As in the constructor.
            integral: As in the constructor.
            optimize_prior: As in the constructor.
        """
        check_type("trained", trained, MAP, "a trained fsvi.MAP; wrap a trained network as fsvi.MAP(net, likelihood)")
        method = cls(
            trained.network,
            trained.likelihood,
            prior_variance=trained.prior_variance,
            structure=structure,
            integral=integral,
            optimize_prior=optimize_prior,
        )
        method.likelihood.load_state_dict(trained.likelihood.state_dict())
        method.num_data = trained.num_data
        method._approximate(method.check_batch(*batch) for batch in _batches(data))
        return method.eval()

    # Learning -------------------------------------------------------------------------------------------------------

    def begin(self, x: Tensor, num_data: int) -> None:
        """Delete an earlier posterior, and check that the layers have a curvature."""
        super().begin(x, num_data)
        self.posterior = None
        self._layers()

    def finish(self, batches: DataPass) -> None:
        """Approximate the posterior around the parameters that training found."""
        self._approximate(batches())

    def log_marginal_likelihood(self, prior_precision: float | None = None) -> Tensor:
        """The evidence log p(D) in Laplace's approximation, for the posterior's own prior precision or another one."""
        posterior = self._trained()
        return posterior.log_evidence(posterior.precision if prior_precision is None else prior_precision)

    @property
    def prior_precision(self) -> float:
        """The prior's precision δ, given or found."""
        return float(self._trained().precision)

    def _approximate(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        posterior = self._make_posterior()
        with evaluating(self.net):
            for x, y in batches:
                size = self._inputs_at_once(posterior, x)
                for x_part, y_part in zip(x.split(size), y.split(size), strict=True):
                    self._add(posterior, x_part, y_part)
        posterior.decompose(self._means())
        posterior.precision.fill_(self._find_precision(posterior))
        self.posterior = posterior

    def _find_precision(self, posterior: GaussNewton) -> float:
        if self.optimize_prior or self.prior_variance is None:
            return posterior.best_precision()
        return 1 / self.prior_variance

    def _add(self, posterior: GaussNewton, x: Tensor, y: Tensor) -> None:
        outputs, recording = record(self.network, self._means(), posterior.layers, self.network.arranged(x))
        roots = self.likelihood.fisher_root(outputs.detach(), y)
        posterior.add(recording, recording.gradients(outputs, roots.movedim(-1, 0)))
        values = outputs.detach().to(precise_dtype(outputs.device))
        nll = self.likelihood.nll(values, y).detach().to(posterior.log_likelihood)
        posterior.log_likelihood -= self.likelihood.num_observed(y) * nll

    def _make_posterior(self) -> GaussNewton:
        return GaussNewton(self._layers(), _CURVATURES[self.structure]).to(self.device)

    def _layers(self) -> list[WeightLayer]:
        return weight_layers(self.net, [self.network.linear] if self.structure == "last_layer" else None)

    def _means(self) -> dict[str, Tensor]:
        return {name: p.detach() for name, p in self.net.named_parameters()}

    def _trained(self) -> GaussNewton:
        if self.posterior is None:
            raise InvalidInputError("Laplace has no posterior yet: train it with fsvi.fit, or use from_trained.")
        return self.posterior

    # Prediction -----------------------------------------------------------------------------------------------------

    def function_moments(self, x: Any) -> tuple[Tensor, Tensor]:
        """The mean, (n, outputs), and the covariance between the outputs at each input, (n, outputs, outputs)."""
        posterior, means, x = self._trained(), self._means(), check_inputs(x, self.dtype)
        with evaluating(self.net):
            parts = x.split(self._inputs_at_once(posterior, x))
            moments = [posterior.function_moments(self.network, means, self.network.arranged(part)) for part in parts]
        values, covariances = zip(*moments, strict=True)
        return torch.cat(values), torch.cat(covariances)

    def function_draws(self, x: Tensor, num_samples: int, generator: torch.Generator, batch_size: int) -> Tensor:
        """Draws of the linearized network, or the logits whose softmax is the average probability."""
        posterior = self.posterior
        if posterior is None:
            return super().function_draws(x, num_samples, generator, batch_size)
        if self.integral == "probit":
            return _probit(*self.function_moments(x))
        size = min(batch_size, self._inputs_at_once(posterior, x))
        step = max(1, _NUMBERS_AT_ONCE // len(posterior.eigenvalues))
        parts = []
        for start in range(0, num_samples, step):
            draws = posterior.draw(min(step, num_samples - start), generator, self.dtype)
            parts.append(self.batched(partial(posterior.functions, self.network, self._means(), draws), x, size))
        return torch.cat(parts, dim=1).transpose(0, 1)

    def fixed_draws(self, x: Any, num_samples: int, generator: torch.Generator) -> Functions:
        """Draws of the linearized network, or the logits whose softmax is the average probability."""
        posterior, means = self.posterior, self._means()
        if posterior is None:
            return super().fixed_draws(x, num_samples, generator)
        if self.integral == "probit":
            return lambda x: _probit(*posterior.function_moments(self.network, means, x))
        step = max(1, _NUMBERS_AT_ONCE // len(posterior.eigenvalues))
        sizes = [min(step, num_samples - start) for start in range(0, num_samples, step)]
        draws = [posterior.draw(size, generator, self.dtype) for size in sizes]
        parts = lambda x: [posterior.functions(self.network, means, draw, x) for draw in draws]  # noqa: E731
        return lambda x: torch.cat(parts(x), dim=1).transpose(0, 1)

    def _inputs_at_once(self, posterior: GaussNewton, x: Tensor) -> int:
        """The number of inputs whose derivatives by layers' outputs and by one layer's parameters fit into memory."""
        _, recording = record(self.network, self._means(), posterior.layers, self.network.arranged(x[:1]))
        numbers = recording.num_outputs
        formed = [layer for layer in posterior.layers if layer.is_convolution or self.structure == "last_layer"]
        largest = max([numbers, *(math.prod(layer.matrix_shape) for layer in formed)])
        return min(_MOST_INPUTS, max(1, _NUMBERS_AT_ONCE // (largest * self.num_outputs)))

    # Files ----------------------------------------------------------------------------------------------------------

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Load the tensors, including the posterior if there was one."""
        has_posterior = any(name.startswith("posterior.") for name in tensors)
        self.posterior = self._make_posterior() if has_posterior else None
        super().load_tensors(tensors)


def _probit(mean: Tensor, covariance: Tensor) -> Tensor:
    """The logits whose softmax is the average probability, as a single draw."""
    variance = covariance.diagonal(dim1=1, dim2=2).to(mean)
    return (mean / (1 + math.pi / 8 * variance).sqrt()).unsqueeze(0)


def _batches(data: Any) -> Iterable[Any]:
    if isinstance(data, Dataset):
        return DataLoader(data, batch_size=512)
    if isinstance(data, DataLoader):
        return data
    if isinstance(data, (tuple, list)) and len(data) == 2:
        return [data]
    raise InvalidInputError(f"data is a {type(data).__name__}: give a pair (x, y), a Dataset or a DataLoader.")
