"""What methods with a mean-field posterior over parameters share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fsvi.likelihoods import Likelihood
from fsvi.methods.base import Method
from fsvi.networks.network import Network
from fsvi.validation import check_count, check_positive
from fsvi.variational import MeanField, prior_names


class MeanFieldMethod(Method):
    """A method that learns a `posterior` over the network's parameters, and predicts with draws from it.

    `log_std` learns `log_std_lr_scale` times as fast as the means. After training, `net` holds the posterior's means.
    """

    posterior: MeanField
    log_std_lr_scale: float

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Means and points at `lr`; `log_std`, which moves on another scale, at its own rate."""
        q = self.posterior
        points = [p for p in (q.mean, q.point, *self.likelihood.parameters()) if p.numel()]
        return [{"params": points, "lr": lr}, {"params": [q.log_std], "lr": self.log_std_lr_scale * lr}]

    def finish(self, batches: Callable[[], Iterable[tuple[Tensor, Tensor]]]) -> None:
        """Leave the posterior's means in `net`."""
        self._write_means()

    def outputs(self, x: Tensor, shifts: list[Tensor]) -> Tensor:
        """The real network's outputs at mean + shift, for each of `shifts`, (M, n, outputs)."""
        return torch.stack([self.network(x, self.posterior.params(shift)) for shift in shifts])

    def function_draws(self, x: Tensor, num_samples: int, generator: torch.Generator, batch_size: int) -> Tensor:
        """Draws of the parameters through the real network."""
        q = self.posterior
        return self.draw_functions((q.params(q.shift(q.noise(generator))) for _ in range(num_samples)), x, batch_size)

    def redundant_names(self) -> set[str]:
        """The network's own parameters, whose values the posterior holds."""
        return {f"net.{name}" for name in self.posterior.params()}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Take over the tensors, and leave the means in `net`."""
        super().load_tensors(tensors)
        self._write_means()

    def _write_means(self) -> None:
        means = self.posterior.means()
        with torch.no_grad():
            for name, p in self.net.named_parameters():
                p.copy_(means[name])


class ParameterSpaceVI(MeanFieldMethod):
    """Minimises −1/(BM) Σ log p(y|f(x; θ)) + kl_scale/N · KL(q(θ) ‖ N(0, prior_variance·I)), θ ~ q of some family."""

    family: ClassVar[type[MeanField]] = MeanField

    def __init__(
        self,
        net: nn.Module | Network,
        likelihood: Likelihood,
        prior_variance: float = 1.0,
        kl_scale: float = 1.0,
        num_samples: int = 1,
        init_std: float = 0.01,
        log_std_lr_scale: float = 0.3,
    ) -> None:
        super().__init__(net, likelihood)
        self.prior_variance = check_positive("prior_variance", prior_variance)
        self.kl_scale = check_positive("kl_scale", kl_scale, zero=True)
        self.num_samples = check_count("num_samples", num_samples)
        self.init_std = check_positive("init_std", init_std)
        self.log_std_lr_scale = check_positive("log_std_lr_scale", log_std_lr_scale, zero=True)
        self.build(self.network)

    def build(self, network: Network) -> None:
        """Make the variational parameters."""
        super().build(network)
        names = prior_names(self.net)
        self.posterior = self.family(self.net, names, self.network.channels_last)
        self.posterior.set_stds(dict.fromkeys(names, self.init_std))

    def terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """The expected negative log-likelihood by M draws, and the scaled KL over N."""
        q = self.posterior
        shifts = [q.shift(q.noise()) for _ in range(self.num_samples)]
        nll = self.likelihood.nll(self.outputs(x, shifts), y)
        return {"nll": nll, "kl": self.kl_scale / (self.num_data or len(x)) * self.kl(shifts)}

    @abstractmethod
    def kl(self, shifts: list[Tensor]) -> Tensor:
        """KL(q(θ) ‖ p(θ)), exactly or estimated with the draws mean + shift."""
