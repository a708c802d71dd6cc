"""Spectral-normalized neural Gaussian processes (Liu, Lin, Padhy, Tran, Bedrax-Weiss, Lakshminarayanan; 2020)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fsvi.likelihoods import Likelihood
from fsvi.methods.base import DataPass, Functions, Method
from fsvi.networks.calls import evaluating
from fsvi.networks.devices import normal, precise_dtype
from fsvi.networks.distance import RandomFeatures
from fsvi.networks.network import Network
from fsvi.posteriors.mean_field import negative_log_normal
from fsvi.ranks import all_sum
from fsvi.validation import check_count, check_positive

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class SNGP(Method):
    """A Gaussian process on features that keep distances: outputs are f_k(x) = φ(h(x))ᵀβ_k.

    h(x) are the network's features and φ random Fourier features of an RBF kernel. Minimizes

        −1/B Σ log p(y|f(x)) − 1/N log N(β; 0, prior_variance·I);

    after each step, weight matrices whose largest singular value is above `max_norm` are scaled down to it, so that
    features cannot move apart faster than inputs. After training, β_k ~ N(β̂_k, P_k⁻¹), Laplace's approximation with

        P_k = I/prior_variance + Σₙ Λₙ,kk φₙφₙᵀ,    Λ the likelihood's Fisher information: p_k(1 − p_k) for classes.

    Predictions draw β. The authors' code estimates P in the last epoch and singular values by power iteration; here,
    both are exact. A convolution counts as the matrix of its weights, (outputs, inputs × pixels). The network's own
    last layer is not used.

    Args:
        net: The network, an `nn.Module` or an `fsvi.Network`; it is copied.
        likelihood: The distribution of targets given the network's outputs.
        num_features: The number of random features, even.
        length_scale: The kernel's length scale in the space of features; None takes the median distance between
            the features of training inputs when training starts.
        max_norm: The largest singular value that weight matrices may have.
        prior_variance: The variance of β's prior, which is the function's far from the data.

    Examples:
        >>> method = fsvi.SNGP(fsvi.networks.mlp(2, (20,), 2), fsvi.Categorical(), num_features=64)
        >>> history = fsvi.fit(method, fsvi.data.two_moons(100, noise=0.1, seed=0), epochs=20, seed=0)
    """

    _takes_weights = False

    weight: nn.Parameter
    """β, (outputs, num_features)"""
    precision: Tensor
    """P, (outputs, num_features, num_features)"""

    def __init__(
        self,
        net: nn.Module | Network,
        likelihood: Likelihood,
        *,
        num_features: int = 512,
        length_scale: float | None = None,
        max_norm: float = 0.95,
        prior_variance: float = 1.0,
    ) -> None:
        super().__init__(net, likelihood)
        self.num_features = check_count("num_features", num_features)
        self.length_scale = None if length_scale is None else check_positive("length_scale", length_scale)
        self.max_norm = check_positive("max_norm", max_norm)
        self.prior_variance = check_positive("prior_variance", prior_variance)
        self.build(self.network)

    def build(self, network: Network) -> None:
        """Start from β = 0, with the prior's precision."""
        super().build(network)
        like = network.linear.weight
        self.random_features = RandomFeatures(network.num_features, self.num_features, self.length_scale).to(like)
        self.weight = nn.Parameter(like.new_zeros(network.num_outputs, self.num_features))
        self.register_buffer("precision", self._prior_precision())

    def _prior_precision(self) -> Tensor:
        eye = torch.eye(self.num_features, dtype=self.weight.dtype, device=self.weight.device)
        return eye.repeat(len(self.weight), 1, 1) / self.prior_variance

    def features(self, x: Any) -> Tensor:
        """φ(h(x)), (n, num_features)."""
        features: Tensor = self.random_features(self.network.features(x).to(self.weight.dtype))
        return features

    def begin(self, x: Any, y: Tensor) -> None:
        """Bound the singular values, take the length scale from training inputs, and forget an earlier posterior."""
        self.after_step()
        self.precision.copy_(self._prior_precision())
        self.random_features.see(self.network.features_of_all(x))

    def forward(self, x: Any, y: Tensor) -> dict[str, Tensor]:
        """The negative log-likelihood, and β's negative log prior divided by N."""
        prior = negative_log_normal([self.weight], self.prior_variance) / (self.num_data or len(y))
        return {"nll": self.likelihood.nll(self.features(x) @ self.weight.T, y), "prior": prior}

    @torch.no_grad()
    def after_step(self) -> None:
        """Scale down the weights of dense and convolutional layers before the last whose singular values are larger."""
        for layer in self.net.modules():
            if isinstance(layer, _LAYERS) and layer is not self.network.linear and layer.weight.requires_grad:
                layer.weight.mul_((self.max_norm / largest_singular_value(layer.weight)).clamp_max(1))

    @torch.no_grad()
    def finish(self, batches: DataPass) -> None:
        """Add up the precision in one pass over the data."""
        total = torch.zeros_like(self.precision)
        with evaluating(self.net):
            for x, y in batches():
                features = self.features(x)
                fisher = self.likelihood.fisher_root(features @ self.weight.T, y).square().sum(-1)
                for k, share in enumerate(fisher.T):
                    total[k].addmm_(features.T * share, features)
        all_sum([total])  # each process has seen its share of the data
        self.precision.copy_(self._prior_precision() + total)

    def functions(self, num_samples: int, generator: torch.Generator) -> Functions:
        """Outputs for draws of β; one pass through the feature layers serves all of them."""
        noise = normal((*self.weight.shape, num_samples), generator, self.dtype, self.device)
        root = torch.linalg.cholesky(self.precision.to(precise_dtype(self.device)))
        shifts = torch.linalg.solve_triangular(root.mT, noise.to(root), upper=True).movedim(-1, 0)
        draws = self.weight + shifts.to(self.weight)
        return lambda x: torch.einsum("nf,skf->snk", self.features(x), draws)


def largest_singular_value(weight: Tensor) -> Tensor:
    """‖W‖₂ of a weight as a matrix (outputs, rest): the root of the largest eigenvalue of its smaller Gram matrix."""
    matrix = weight.flatten(1).to(precise_dtype(weight.device))
    gram = matrix @ matrix.T if len(matrix) <= matrix.shape[1] else matrix.T @ matrix
    return torch.linalg.eigvalsh(gram)[-1].sqrt().to(weight)
