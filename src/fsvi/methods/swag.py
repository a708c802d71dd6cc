"""Stochastic weight averaging, Gaussian (Maddox, Garipov, Izmailov, Vetrov, Wilson; NeurIPS 2019)."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from fsvi import ranks
from fsvi.likelihoods import Likelihood
from fsvi.methods.base import DataPass, Functions, Method, network_functions
from fsvi.methods.map import check_variance, prior_term
from fsvi.networks.calls import averaging_statistics
from fsvi.networks.network import Network
from fsvi.posteriors.low_rank import LowRank
from fsvi.posteriors.mean_field import FlatLayout, prior_names
from fsvi.validation import check_count, check_fraction


class SWAG(Method):
    """Trains like `MAP`, and fits a Gaussian to the parameters θᵢ that training passes through.

    θ ~ N(θ̄, ½ diag(σ²) + ½ D Dᵀ/(K − 1)), with θ̄ and σ² the mean and the variances of the collected θᵢ, and in D the
    last K of them, K ≤ `rank`, each as its deviation from the mean at its time.

    Only large steps let the parameters explore the posterior: train with `fsvi.fit(..., schedule=None)`, or with a
    schedule that ends high, `fsvi.training.cosine(final=0.5)`. One that decays to nothing collects only one network.

    BatchNorm's statistics belong to the parameters with which they were computed. With BatchNorm in the network, the
    end of training draws `num_models` networks and computes the statistics of each in a pass over the training data;
    these draws predict. BatchNorm's scale and shift, and a learned noise, are averaged and not drawn. After training,
    `net` holds θ̄.

    Args:
        net: The network, an `nn.Module` or an `fsvi.Network`; it is copied.
        likelihood: The distribution of targets given the network's outputs.
        rank: The largest number of deviations that are kept, K.
        start: The fraction of training after which collecting begins.
        collect_every: The number of steps between two collected networks; None collects after every epoch.
        num_models: The number of draws that predict where the network has BatchNorm.
        prior_variance: The variance of the Gaussian prior over parameters; None leaves it out.

    Examples:
        >>> method = fsvi.SWAG(fsvi.networks.mlp(2, (20,), 2), fsvi.Categorical())
        >>> history = fsvi.fit(method, fsvi.data.two_moons(100, noise=0.1, seed=0), epochs=20, seed=0)
    """

    gaussian: LowRank
    """The Gaussian over all trainable parameters as one vector."""
    statistics: Tensor
    """The statistics of BatchNorm, one row for each of `num_models` draws; zeros until these have been made."""
    steps: Tensor
    """The number of steps since collecting began."""

    _takes_positions = True

    def __init__(
        self,
        net: nn.Module | Network,
        likelihood: Likelihood,
        *,
        rank: int = 20,
        start: float = 0.5,
        collect_every: int | None = None,
        num_models: int = 30,
        prior_variance: float | None = 1.0,
    ) -> None:
        super().__init__(net, likelihood)
        self.prior_variance = check_variance(prior_variance)
        self.rank = check_count("rank", rank, least=2)
        self.start = check_fraction("start", start)
        self.collect_every = None if collect_every is None else check_count("collect_every", collect_every)
        self.num_models = check_count("num_models", num_models)
        self.build(self.network)

    def build(self, network: Network) -> None:
        """Allocate the state: first the parameters that are drawn, then those that are only averaged."""
        super().build(network)
        trainable = {name: p for name, p in self.named_parameters() if p.requires_grad}
        drawn = {name: trainable[name] for name in (f"net.{name}" for name in prior_names(self.net))}
        tensors = {**drawn, **trainable}
        self._layout = FlatLayout({name: p.shape for name, p in tensors.items()})
        vector = self._layout.flatten(tensors)
        self.gaussian = LowRank(vector, sum(p.numel() for p in drawn.values()), self.rank)
        statistics = {n: b for n, b in self.net.named_buffers() if n.endswith(("running_mean", "running_var"))}
        self._norms = FlatLayout({name: buffer.shape for name, buffer in statistics.items()})
        self.register_buffer("statistics", vector.new_zeros(self.num_models, sum(self._norms.sizes)))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64, device=network.device))

    def begin(self, x: Any, y: Tensor) -> None:
        """Delete what an earlier training collected."""
        self.gaussian.reset()
        self.steps.zero_()
        self.statistics.zero_()

    def forward(self, x: Any, y: Tensor) -> dict[str, Tensor]:
        """The terms of `MAP`."""
        return {"nll": self.likelihood.nll(self.network(x), y), **prior_term(self, len(x))}

    def after_step(self) -> None:
        """Collect every `collect_every` steps."""
        if self.collect_every is not None and self.progress >= self.start:
            self.steps += 1
            if int(self.steps) % self.collect_every == 0:
                self._collect()

    def after_epoch(self, batches: DataPass) -> None:
        """Collect once per epoch."""
        if self.collect_every is None and self.progress >= self.start:
            self._collect()

    def finish(self, batches: DataPass) -> None:
        """Copy the mean into `net`, and compute the statistics of BatchNorm."""
        count = int(self.gaussian.count)
        if count < 2:
            message = f"SWAG has collected {count} networks, too few for a Gaussian: train longer, or start earlier."
            warnings.warn(message, stacklevel=2)
        if count == 0:
            return
        if self._norms.shapes:
            for index, row in enumerate(self.statistics):
                row.copy_(self._compute_statistics(self._settled_draw(index), batches()))
            self._compute_statistics(self.gaussian.mean, batches())
        self.load_state_dict(self._layout.views(self.gaussian.mean), strict=False)

    def _collect(self) -> None:
        self.gaussian.collect(self._layout.flatten(dict(self.named_parameters())))

    def _compute_statistics(self, vector: Tensor, batches: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
        """BatchNorm's statistics over the data with these parameters, as one row. They stay in `net`, too."""
        params = self._net_params(vector)
        with torch.no_grad(), averaging_statistics(self.net, self.network.frozen_norms()):
            for x, _ in batches:
                self.network(x, params)
        statistics = self._norms.flatten(dict(self.net.named_buffers())) / ranks.size()
        ranks.all_sum([statistics])  # each process has seen its share of the data
        self.net.load_state_dict(self._norms.views(statistics), strict=False)
        return statistics

    def functions(self, num_samples: int, generator: torch.Generator) -> Functions:
        """Draws of the parameters. With BatchNorm there are `num_models` fixed draws; before training, the network is
        used.
        """
        if int(self.gaussian.count) == 0:
            return network_functions(self.network, {})
        if not self.statistics.any():
            vectors = torch.stack([self.gaussian.draw(generator) for _ in range(num_samples)])
            return network_functions(self.network, self._net_params(vectors))
        chosen = torch.randperm(self.num_models, generator=generator, device=generator.device)[:num_samples].tolist()
        vectors = torch.stack([self._settled_draw(index) for index in chosen])
        statistics = self._norms.views(self.statistics[chosen])
        return network_functions(self.network, {**self._net_params(vectors), **statistics})

    def _draw_size(self) -> int:
        return self.gaussian.mean.numel()

    def _settled_draw(self, index: int) -> Tensor:
        return self.gaussian.draw(torch.Generator().manual_seed(index))

    def _net_params(self, vector: Tensor) -> dict[str, Tensor]:
        views = self._layout.views(vector)
        return {name.removeprefix("net."): value for name, value in views.items() if name.startswith("net.")}
