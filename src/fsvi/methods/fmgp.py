"""Fixed-mean Gaussian processes (Ortega, Rodríguez-Santana & Hernández-Lobato, 2024)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fsvi.likelihoods import Likelihood
from fsvi.methods.fixed_mean import FixedMean, Variances
from fsvi.networks.network import Network
from fsvi.validation import check_count


class FMGP(FixedMean):
    """A sparse Gaussian process for each output, whose mean is the trained network; only the covariance is learned.

    With M inducing points Z and a free positive matrix A = LLᵀ for each output,

        cov(x, x') = k(x, x') − k(x, Z) L H⁻¹ Lᵀ k(Z, x'),    H = I + Lᵀ K_Z L,
        loss = −1/B Σ log p(y|x) + 1/N Σ over outputs [½ log|H| − ½ tr(K_Z L H⁻¹ Lᵀ)],

    where p is the predictive density. k is an amplitude times an RBF kernel times an inner product, both of the
    standardized features before the last layer. Z starts at random training inputs. The paper's surrogate for the
    kernel's parameters is left out: the predictive density trains them.

    Args:
        net: The trained network, an `nn.Module` or an `fsvi.Network`; it is copied.
        likelihood: `fsvi.Categorical()`, or `fsvi.Gaussian()` with one noise per output.
        num_inducing: The number of inducing points per output, M.

    Examples:
        >>> data = fsvi.data.two_moons(100, noise=0.1, seed=0)
        >>> trained = fsvi.MAP(fsvi.networks.mlp(2, (20,), 2), fsvi.Categorical())
        >>> history = fsvi.fit(trained, data, epochs=20, seed=0)
        >>> method = fsvi.FMGP(trained.network, fsvi.Categorical())
        >>> history = fsvi.fit(method, data, epochs=20, seed=0)
    """

    def __init__(self, net: nn.Module | Network, likelihood: Likelihood, *, num_inducing: int = 20) -> None:
        super().__init__(net, likelihood)
        self.num_inducing = check_count("num_inducing", num_inducing)
        self.build(self.network)

    def build(self, network: Network) -> None:
        """Start from A = I."""
        super().build(network)
        outputs, width, like = network.num_outputs, network.num_features, network.linear.weight
        self.inducing = nn.Parameter(torch.randn(outputs, self.num_inducing, width).to(like))
        self.factor = nn.Parameter(torch.eye(self.num_inducing).repeat(outputs, 1, 1).to(like))
        self.log_scale = nn.Parameter(like.new_tensor(0.5 * width).log() / 2)
        self.log_amplitude = nn.Parameter(like.new_zeros(()))

    def see(self, features: Tensor) -> None:
        """Put the inducing points on training inputs."""
        self.inducing.copy_(features[torch.randint(len(features), self.inducing.shape[:2])])

    def kernel(self, a: Tensor, b: Tensor) -> Tensor:
        """k(a, b), (..., rows of a, rows of b)."""
        inner = a @ b.mT
        lengths = a.square().sum(-1)[..., :, None] + b.square().sum(-1)[..., None, :]
        squares = (lengths - 2 * inner).clamp_min(0)  # not `cdist`, which chooses its formula by the number of rows
        product = (1 + inner) / (1 + a.shape[-1])
        return (self.log_amplitude - 0.5 * squares * (-2 * self.log_scale).exp()).exp() * product

    def prior_variances(self, features: Tensor) -> Tensor:
        """k(x, x), (n,)."""
        return self.log_amplitude.exp() * (1 + features.square().sum(1)) / (1 + features.shape[1])

    def _parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """K_Z, the Cholesky factor R of H, and R⁻¹Lᵀ, for each output."""
        low, gram = self.factor.tril(), self.kernel(self.inducing, self.inducing)
        eye = torch.eye(self.num_inducing, dtype=gram.dtype, device=gram.device)
        root = torch.linalg.cholesky(eye + low.mT @ gram @ low)
        return gram, root, torch.linalg.solve_triangular(root, low.mT, upper=False)

    def variances(self, features: Tensor) -> Tensor:
        """cov(x, x) for each output, (n, outputs)."""
        return self.prepared()(features)

    def prepared(self) -> Variances:
        """`variances` with R⁻¹Lᵀ computed already: ONNX has no Cholesky factors."""
        _, _, half = self._parts()

        def variances(features: Tensor) -> Tensor:
            explained = half @ self.kernel(self.inducing, features)
            return (self.prior_variances(features) - explained.square().sum(1)).T.clamp_min(0)

        return variances

    def divergence(self) -> Tensor:
        """½ log|H| − ½ tr(K_Z L H⁻¹ Lᵀ), summed over outputs: the part of the KL that depends on the covariance."""
        gram, root, half = self._parts()
        return root.diagonal(dim1=1, dim2=2).log().sum() - 0.5 * (half @ gram @ half.mT).diagonal(0, 1, 2).sum()

    def forward(self, x: Any, y: Tensor) -> dict[str, Tensor]:
        """The predictive negative log-likelihood and the KL, divided by N."""
        return {"nll": self.predictive_nll(x, y), "kl": self.divergence() / (self.num_data or len(y))}
