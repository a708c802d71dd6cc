"""The step that the benchmark holds FSVI against: the same objective by a Jacobian in memory."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence
from torch.func import jacrev, vmap

from fsvi.functions.divergences import KL
from fsvi.methods import FSVI, Method
from fsvi.networks.modes import evaluating


class JacobianFSVI(FSVI):
    """FSVI with q(f_k(X)) = N(f_k(X; μ), J_k S J_kᵀ) for every output k, with J_k = ∂f_k(X)/∂θ held in memory.

    The whole network is linearized, as in the paper's equations, and J has K · outputs · parameters entries. Outputs
    are taken as independent; for a single output this is `linearize="exact"`.
    """

    def terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """The negative log-likelihood by one draw, and the weighted KL at one context set."""
        q = self.posterior
        nll = self.likelihood.nll(self.weights.outputs(x, [q.shift(q.noise())]), y)
        return {"nll": nll, "kl": self._weight(x) * self.function_kl(self.function_space.points(x))}

    def backward(self, x: Tensor, y: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        """As in `Method`: the Jacobian's graph is one."""
        return Method.backward(self, x, y, scale)

    def function_kl(self, x_context: Any) -> Tensor:
        """KL(q(f(X)) ‖ p(f(X))), summed over outputs."""
        mean, jacobian = self._jacobian(x_context)
        scaled = jacobian.transpose(0, 1) * self.posterior.log_std.exp()
        covariance = (scaled @ scaled.mT).double()
        covariance.diagonal(dim1=-2, dim2=-1).add_(self._nugget)
        p = self.prior.gaussian(x_context).prepared(self._nugget)
        q = MultivariateNormal(mean.T.double(), covariance)
        return kl_divergence(q, MultivariateNormal(p.mean.T, p.covariance())).sum()

    @property
    def _nugget(self) -> float:
        assert isinstance(self.divergence, KL)
        return self.divergence.nugget

    def _jacobian(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """f(X), (K, Q), and its Jacobian, (K, Q, parameters), at the means: point by point, the cheapest way."""
        points = self.posterior.point_layout.views(self.posterior.point)

        def outputs(mean: Tensor, point: Tensor) -> tuple[Tensor, Tensor]:
            params = {**self.posterior.layout.views(mean), **points}
            values = self.network(point.unsqueeze(0), params).squeeze(0)
            return values, values

        with evaluating(self.net):
            jacobian, mean = vmap(jacrev(outputs, has_aux=True), in_dims=(None, 0))(self.posterior.mean, x)
        return mean, jacobian
