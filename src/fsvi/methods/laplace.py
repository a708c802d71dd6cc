"""Laplace's approximation with the generalized Gauss–Newton matrix (Immer, Korzepa & Bauer, 2020; Daxberger, 2021)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from fsvi.errors import InvalidInputError
from fsvi.functions.linearize import linearized_outputs
from fsvi.likelihoods import Likelihood
from fsvi.methods.base import DataPass, Functions, Method, network_functions
from fsvi.methods.map import MAP, check_variance, prior_term
from fsvi.networks.calls import evaluating
from fsvi.networks.devices import precise_dtype
from fsvi.networks.network import Network
from fsvi.posteriors.gauss_newton import Curvature, Diagonal, Full, GaussNewton, Kronecker
from fsvi.posteriors.per_example import Recording, WeightLayer, record, weight_layers
from fsvi.ranks import all_sum
from fsvi.validation import check_choice, check_type

Structure = Literal["last_layer", "last_layer_kron", "kron", "diagonal"]

_CURVATURES: dict[str, Callable[[WeightLayer], Curvature]] = {
    "last_layer": Full,
    "last_layer_kron": Kronecker,
    "kron": Kronecker,
    "diagonal": Diagonal,
}
_LARGEST_FULL = 6_000
"""The most parameters of a last layer whose full matrix is decomposed; more take minutes and gigabytes."""
_NUMBERS_AT_ONCE = 2**24
"""The most numbers that the derivatives of the outputs may have."""
_MOST_INPUTS = 512


class Laplace(Method):
    """Trains as `MAP`, to the mode θ*, and then uses the Gaussian N(θ*, (H + δI)⁻¹) as the posterior.

    H = Σₙ Jₙᵀ Λₙ Jₙ is the generalized Gauss–Newton matrix, J the Jacobian of the outputs at θ* and Λ the likelihood's
    Fisher information. The prior's precision δ is 1/`prior_variance`, or the one of the largest evidence,

        log p(D) ≈ log p(D|θ*) − ½ δ‖θ*‖² + ½ P log δ − ½ log|H + δI|,    P parameters in H.

    Predictions are those of the network linearized at θ*, f(x; θ*) + J (θ − θ*) for draws of θ that all inputs share.
    With a random last layer they cost one pass, otherwise a forward-mode pass for each draw.

    Before training, it predicts like `MAP`; `from_trained` takes a trained `MAP`.

    Args:
        net: The network, an `nn.Module` or an `fsvi.Network`; it is copied.
        likelihood: The distribution of targets given the network's outputs.
        prior_variance: The variance of the Gaussian prior over parameters; None leaves it out of training.
        structure: Which part of H is kept. "last_layer" keeps all of it for the last layer, whose eigenvectors cost
            O((features · outputs)³); "last_layer_kron" keeps a Kronecker product of it, for heads with more than a
            few thousand parameters. "kron" keeps Kronecker products and "diagonal" the diagonal, layer by layer, for
            the weights and biases of all dense layers and two-dimensional convolutions. Other parameters stay at θ*.
        optimize_prior: Whether δ is the one of the largest evidence.

    Examples:
        >>> data = fsvi.data.two_moons(100, noise=0.1, seed=0)
        >>> trained = fsvi.MAP(fsvi.networks.mlp(2, (20,), 2), fsvi.Categorical())
        >>> history = fsvi.fit(trained, data, epochs=20, seed=0)
        >>> method = fsvi.Laplace.from_trained(trained, data)  # one pass over the data
    """

    _takes_weights = False

    posterior: GaussNewton

    def __init__(
        self,
        net: nn.Module | Network,
        likelihood: Likelihood,
        *,
        prior_variance: float | None = 1.0,
        structure: Structure = "last_layer",
        optimize_prior: bool = True,
    ) -> None:
        super().__init__(net, likelihood)
        self.prior_variance = check_variance(prior_variance)
        self.structure = check_choice("structure", structure, _CURVATURES)
        self.optimize_prior = optimize_prior
        if prior_variance is None and not optimize_prior:
            raise InvalidInputError("Laplace needs a prior: give prior_variance a number, or set optimize_prior=True.")
        self.build(self.network)

    def build(self, network: Network) -> None:
        """Start without a posterior: its tensors are made when it is known, or when a file has them."""
        super().build(network)
        self._forget()
        size = math.prod(self.posterior.layers[0].matrix_shape)
        if self.structure == "last_layer" and size > _LARGEST_FULL:
            raise InvalidInputError(
                f"the last layer has {size:,} parameters, too many for their full covariance: use "
                'structure="last_layer_kron".'
            )

    @classmethod
    def from_trained(cls, trained: MAP, data: Any, **settings: Any) -> Laplace:
        """The approximation around a trained `MAP`.

        Args:
            trained: The trained `MAP`. Wrap a network that was trained without fsvi: `fsvi.MAP(net, likelihood)`.
            data: Its training data: a pair (x, y), a Dataset or a DataLoader.
            settings: `structure` and `optimize_prior`, as in the constructor.
        """
        check_type("trained", trained, MAP, "a trained fsvi.MAP; wrap a trained network as fsvi.MAP(net, likelihood)")
        method = cls(trained.network, trained.likelihood, prior_variance=trained.prior_variance, **settings)
        method.likelihood.load_state_dict(trained.likelihood.state_dict())
        method.num_data = trained.num_data
        method._see(method.check_batch(*batch) for batch in _batches(data))
        method._decompose()
        return method.eval()

    def begin(self, x: Any, y: Tensor) -> None:
        """Delete an earlier posterior."""
        self._forget()

    def forward(self, x: Any, y: Tensor) -> dict[str, Tensor]:
        """The terms of `MAP`."""
        return {"nll": self.likelihood.nll(self.network(x), y), **prior_term(self, len(x))}

    def finish(self, batches: DataPass) -> None:
        """Approximate the posterior around the parameters that training found."""
        self._see(batches())
        all_sum(list(self.posterior.buffers()))  # each process has seen its share of the data
        self._decompose()

    def log_marginal_likelihood(self, prior_precision: float | None = None) -> Tensor:
        """The evidence log p(D) in Laplace's approximation, for the posterior's own prior precision or another one."""
        posterior = self._trained()
        return posterior.log_evidence(posterior.precision if prior_precision is None else prior_precision)

    @property
    def prior_precision(self) -> float:
        """The prior's precision δ, given or found."""
        return float(self._trained().precision)

    def _forget(self) -> None:
        """Start without a posterior."""
        among = [self.network.linear] if self.structure.startswith("last_layer") else None
        self.posterior = GaussNewton(weight_layers(self.net, among), _CURVATURES[self.structure]).to(self.device)

    def _see(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        self._forget()
        with evaluating(self.net):
            for x, y in batches:
                size = self._inputs_at_once(x)
                for x_part, y_part in zip(x.split(size), y.split(size), strict=True):
                    self._add(x_part, y_part)

    def _decompose(self) -> None:
        self.posterior.decompose(self._means())
        variance = None if self.optimize_prior else self.prior_variance
        self.posterior.precision.fill_(self.posterior.best_precision() if variance is None else 1 / variance)

    def _record(self, x: Tensor) -> tuple[Tensor, Recording]:
        return record(self.network, self._means(), self.posterior.layers, self.network.arranged(x))

    def _add(self, x: Tensor, y: Tensor) -> None:
        outputs, recording = self._record(x)
        roots = self.likelihood.fisher_root(outputs.detach(), y)
        self.posterior.add(recording, recording.gradients(outputs, roots.movedim(-1, 0)))
        values = outputs.detach().to(precise_dtype(outputs.device))
        nll = self.likelihood.nll(values, y).detach().to(self.posterior.log_likelihood)
        self.posterior.log_likelihood -= self.likelihood.num_observed(y) * nll

    def _means(self) -> dict[str, Tensor]:
        return {name: p.detach() for name, p in self.net.named_parameters()}

    def _trained(self) -> GaussNewton:
        if not self.posterior.is_known:
            raise InvalidInputError("Laplace has no posterior yet: train it with fsvi.fit, or use from_trained.")
        return self.posterior

    def functions(self, num_samples: int, generator: torch.Generator) -> Functions:
        """Draws of the linearized network."""
        if not self.posterior.is_known:
            return network_functions(self.network, {})
        means = self._means()
        shifts = self.posterior.draw(num_samples, generator, self.network.linear.weight)
        if shifts.keys() <= set(self.network.head_names):  # the network is linear in these parameters
            return network_functions(self.network, {name: means[name] + shift for name, shift in shifts.items()})
        still = {name: torch.zeros_like(means[name]) for name in self.network.head_names}
        draws = [{**still, **{name: shift[i] for name, shift in shifts.items()}} for i in range(num_samples)]
        return lambda x: torch.stack([sum(linearized_outputs(self.network, draw, x)) for draw in draws])  # type: ignore[misc]

    def _draw_size(self) -> int:
        return self.posterior.num_parameters

    def _inputs_at_once(self, x: Tensor) -> int:
        """The number of inputs whose derivatives of the outputs fit into memory."""
        _, recording = self._record(x[:1])
        whole = self.posterior.num_parameters if self.structure == "last_layer" else 0
        largest = max(sum(each.numel() for each in recording.outputs), whole) * self.network.num_outputs
        return min(_MOST_INPUTS, max(1, _NUMBERS_AT_ONCE // largest))


def _batches(data: Any) -> Iterable[Any]:
    if isinstance(data, Dataset):
        return DataLoader(data, batch_size=512)
    if isinstance(data, DataLoader):
        return data
    if isinstance(data, (tuple, list)) and len(data) == 2:
        return [data]
    raise InvalidInputError(f"data is a {type(data).__name__}: give a pair (x, y), a Dataset or a DataLoader.")
