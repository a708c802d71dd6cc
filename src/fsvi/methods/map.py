"""Maximum a posteriori: one network, no uncertainty of its own."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fsvi.likelihoods import Likelihood
from fsvi.methods.base import Method
from fsvi.networks.network import Network
from fsvi.posteriors.mean_field import negative_log_normal, prior_names
from fsvi.validation import check_positive


class MAP(Method):
    """Minimizes −1/B Σ log p(y|f(x; θ)) − 1/N log N(θ; 0, prior_variance·I), up to a constant.

    The scale and shift of BatchNorm have no prior.

    Args:
        net: The network, an `nn.Module` or an `fsvi.Network`; it is copied.
        likelihood: The distribution of targets given the network's outputs.
        prior_variance: The variance of the Gaussian prior; None leaves the prior out: maximum likelihood.

    Examples:
        >>> x, y = fsvi.data.two_moons(100, noise=0.1, seed=0)
        >>> net = fsvi.networks.mlp(2, (20,), 2)
        >>> method = fsvi.MAP(net, fsvi.Categorical())
        >>> history = fsvi.fit(method, (x, y), epochs=20, seed=0)
        >>> method.predict(x).mean.shape  # probabilities
        torch.Size([100, 2])
    """

    _takes_positions = True

    def __init__(self, net: nn.Module | Network, likelihood: Likelihood, *, prior_variance: float | None = 1.0) -> None:
        super().__init__(net, likelihood)
        self.prior_variance = check_variance(prior_variance)
        self.build(self.network)

    def forward(self, x: Any, y: Tensor) -> dict[str, Tensor]:
        """The negative log-likelihood, and the negative log prior divided by N."""
        return {"nll": self.likelihood.nll(self.network(x), y), **prior_term(self, len(x))}


def check_variance(prior_variance: float | None) -> float | None:
    """The variance of a prior over parameters, or None for none."""
    return None if prior_variance is None else check_positive("prior_variance", prior_variance)


def prior_term(method: Any, num: int) -> dict[str, Tensor]:
    """−1/N log N(θ; 0, prior_variance·I) of the network's own parameters, if there is a prior; `num` if N is open."""
    if method.prior_variance is None:
        return {}
    own = dict(method.net.named_parameters())
    density = negative_log_normal((own[name] for name in prior_names(method.net)), method.prior_variance)
    return {"prior": density / (method.num_data or num)}
