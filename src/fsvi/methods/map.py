"""Maximum a posteriori: one network, no uncertainty of its own."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fsvi.likelihoods import Likelihood
from fsvi.methods.method import Method
from fsvi.networks.split import deterministic_names, split_head
from fsvi.validation import check_positive


class MAP(Method):
    """Minimises −1/B Σ log p(y|f(x; θ)) − 1/N log N(θ; 0, prior_variance·I), up to a constant.

    `prior_variance=None` leaves the prior out: maximum likelihood. The scale and shift of BatchNorm have no prior.
    """

    def __init__(
        self,
        net: nn.Module,
        likelihood: Likelihood,
        prior_variance: float | None = 1.0,
        head: str | None = None,
        channels_last: bool = True,
    ) -> None:
        super().__init__(net, likelihood, head, channels_last)
        self.prior_variance = None if prior_variance is None else check_positive("prior_variance", prior_variance)
        self.build(split_head(self.net, head=head))

    def terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """The negative log-likelihood, and the negative log prior over N."""
        nll = self.likelihood.nll(self.net(x), y)
        if self.prior_variance is None:
            return {"nll": nll}
        norms = torch._foreach_norm(self._regularised())
        squares = torch.stack(list(norms)).square().sum()
        return {"nll": nll, "prior": 0.5 * squares / (self.prior_variance * (self.num_data or len(x)))}

    def function_draws(self, x: Tensor, num_samples: int, generator: torch.Generator, batch_size: int) -> Tensor:
        """The one function there is: a single draw, whatever `num_samples`."""
        return self.batched(self.net, x, batch_size).unsqueeze(0)

    def _regularised(self) -> list[Tensor]:
        skip = deterministic_names(self.net)
        return [p for name, p in self.net.named_parameters() if p.requires_grad and name not in skip]
