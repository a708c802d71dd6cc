"""Rank-one Bayesian neural networks (Dusenberry, Jerfel, Wen, Ma, Snoek, Heller, Lakshminarayanan & Tran, 2020)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fsvi.errors import InvalidInputError
from fsvi.functions.divergences import KLWeight, check_kl_weight, kl_weight_value
from fsvi.likelihoods import Likelihood
from fsvi.methods.base import Functions, Method
from fsvi.methods.map import check_variance, prior_term
from fsvi.networks.calls import repeatable
from fsvi.networks.devices import normal
from fsvi.networks.network import Network
from fsvi.networks.parameters import is_weight_layer
from fsvi.posteriors.mean_field import FlatLayout, Stds, check_stds, normal_kl
from fsvi.validation import check_count, check_positive

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Rank1(Method):
    """Minimizes −1/(BM) Σ log p(y|f(x; W ∘ s rᵀ)) − 1/N log N(W; 0, prior_variance·I) + kl_weight · KL(q ‖ p).

    W are the network's own parameters, learned as by MAP. Every dense layer and convolution computes
    ((x ∘ r) Wᵀ) ∘ s + b with random factors r of its inputs and s of its outputs. Their posterior is the mixture
    q(r, s) = 1/K Σₖ N(meanₖ, diag(stdₖ²)), their prior p = N(1, prior_std²·I). The mixture's KL is replaced by the mean
    of its components' KLs, which is an upper bound.

    In training, the examples of a minibatch are assigned evenly and at random to the components, and each has its own
    draw of the factors, M times. In prediction, draws go through the components in turn, so `num_samples` there should
    be a multiple of K.

    Args:
        net: The network, an `nn.Module` or an `fsvi.Network`; it is copied.
        likelihood: The distribution of targets given the network's outputs.
        prior_variance: The variance of the Gaussian prior over W; None leaves it out.
        num_components: The number of components of the mixture, K.
        prior_std: The standard deviation of the factors' prior.
        kl_weight: The weight of the KL in the loss: a number, None for 1/N (the ELBO), or `fsvi.Tempered(t)` for t/N.
        num_samples: The number of draws per step, M.
        random_signs: Whether the factors start at ±1 instead of 1. This sets the components apart but needs wide
            layers, because they share W. The prior is then ½ N(1, prior_std²) + ½ N(−1, prior_std²), and the KL to the
            half where a factor starts is an upper bound on the KL to both, up to a constant.
        stds: How the factors' standard deviations start and learn; None is `Stds(0.05)`.

    Examples:
        >>> method = fsvi.Rank1(fsvi.networks.mlp(2, (20,), 2), fsvi.Categorical())
        >>> history = fsvi.fit(method, fsvi.data.two_moons(100, noise=0.1, seed=0), epochs=20, seed=0)
    """

    def __init__(
        self,
        net: nn.Module | Network,
        likelihood: Likelihood,
        *,
        prior_variance: float | None = 1.0,
        num_components: int = 4,
        prior_std: float = 0.1,
        kl_weight: KLWeight = None,
        num_samples: int = 1,
        random_signs: bool = False,
        stds: Stds | None = None,
    ) -> None:
        super().__init__(net, likelihood)
        self.prior_variance = check_variance(prior_variance)
        self.num_components = check_count("num_components", num_components)
        self.prior_std = check_positive("prior_std", prior_std)
        self.kl_weight = check_kl_weight(kl_weight)
        self.num_samples = check_count("num_samples", num_samples)
        self.random_signs = random_signs
        self.stds = check_stds(stds, Stds(0.05))
        self.build(self.network)

    def build(self, network: Network) -> None:
        """Make the factors' mixture."""
        super().build(network)
        std, lr_scale = self.stds.single(), self.stds.lr_scale
        self.factors = RankOne(self.net, self.num_components, std, self.random_signs, lr_scale)

    def forward(self, x: Any, y: Tensor) -> dict[str, Tensor]:
        """The expected negative log-likelihood over M draws, the weighted KL of the factors, and the prior of W."""
        f = torch.stack([self._outputs(x, self._deal(len(x))) for _ in range(self.num_samples)])
        kl = kl_weight_value(self.kl_weight, self.num_data or len(x)) * self.factors.kl(self.prior_std)
        return {"nll": self.likelihood.nll(f, y), "kl": kl, **prior_term(self, len(x))}

    def functions(self, num_samples: int, generator: torch.Generator) -> Functions:
        """Draws of the factors, one for all inputs, from each component in turn."""
        components = torch.arange(num_samples, device=self.device) % self.num_components
        draws = self.factors.draw(components, generator).split(1)
        return lambda x: torch.stack([self._outputs(x, factors) for factors in draws])

    def _deal(self, num: int) -> Tensor:
        """Factors for `num` examples, (examples, factors), from components in equal shares."""
        return self.factors.draw(torch.randperm(num, device=self.device) % self.num_components)

    def _outputs(self, x: Any, factors: Tensor) -> Tensor:
        with repeatable(lambda: self.factors.scaling(self.net, factors)):
            return self.network(x)


class RankOne(nn.Module):
    """q(r, s) = 1/K Σₖ N(meanₖ, diag(exp(log_stdₖ)²)) over factors r and s of every weight layer's inputs and outputs.

    The factors of all layers in one component are one row of `mean` and of `log_std`, both (K, factors). Each factor
    starts at its prior's mean `centre`. Frozen layers and the projections inside attention have no factors.
    """

    centre: Tensor

    def __init__(
        self, net: nn.Module, num_components: int, init_std: float, random_signs: bool = False, lr_scale: float = 1.0
    ) -> None:
        super().__init__()
        self.lr_scale = lr_scale
        self.layers: dict[str, str] = {}
        """The first layer that has its weight, by the name of each layer: layers that share a weight share factors."""
        first: dict[Any, str] = {}
        shapes = {}
        for name, layer in net.named_modules():
            if is_weight_layer(layer, _LAYERS):
                self.layers[name] = first.setdefault(layer.weight, name)
                if self.layers[name] == name:
                    shapes[f"r of {name}"] = torch.Size([layer.weight.shape[1] * getattr(layer, "groups", 1)])
                    shapes[f"s of {name}"] = layer.weight.shape[:1]
        self.layout = FlatLayout(shapes)
        centre = torch.ones(num_components, sum(self.layout.sizes)).to(next(net.parameters()))
        self.register_buffer("centre", torch.randn_like(centre).sign() if random_signs else centre)
        self.mean = nn.Parameter(self.centre.clone())
        self.log_std = nn.Parameter(torch.full_like(centre, math.log(init_std)))

    def draw(self, components: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Factors, one row per requested component, (rows, factors)."""
        noise = normal((len(components), self.mean.shape[1]), generator, self.mean.dtype, self.mean.device)
        # A matrix product selects rows with a backward pass that is another product, not a loop over rows.
        select = (components[:, None] == torch.arange(len(self.mean), device=noise.device)).to(noise)
        with torch.autocast(noise.device.type, enabled=False):  # half precision would round the means
            return select @ self.mean + (select @ self.log_std.exp()) * noise

    @contextmanager
    def scaling(self, net: nn.Module, factors: Tensor) -> Iterator[None]:
        """A context in which `net` computes with these factors, one row per input, or one row for all inputs."""
        rows = self.layout.views(factors)
        with ExitStack() as hooks:
            for name, first in self.layers.items():
                layer = net.get_submodule(name)
                hooks.enter_context(layer.register_forward_pre_hook(partial(_scale_input, rows[f"r of {first}"])))
                hooks.enter_context(layer.register_forward_hook(partial(_scale_output, rows[f"s of {first}"])))
            yield

    def kl(self, prior_std: float) -> Tensor:
        """1/K Σₖ KL(N(meanₖ, diag(exp(log_stdₖ)²)) ‖ N(centreₖ, prior_std²·I)), an upper bound on the mixture's."""
        return normal_kl([self.mean - self.centre], self.log_std, prior_std**2) / len(self.mean)


def _scale_input(r: Tensor, layer: nn.Module, args: tuple[Tensor, ...]) -> Tensor:
    """x ∘ r"""
    x = args[0]
    if len(r) > 1 and len(r) != len(x):
        raise InvalidInputError(
            f"a layer sees an input of shape {tuple(x.shape)} where the batch has {len(r)} examples: rank-one factors "
            "differ between examples, so every weight layer needs them as its input's first dimension."
        )
    return x * _along(r, layer, x)


def _scale_output(s: Tensor, layer: Any, args: Any, output: Tensor) -> Tensor:
    """((x ∘ r) Wᵀ) ∘ s + b, from (x ∘ r) Wᵀ + b."""
    scaled = output * _along(s, layer, output)
    return scaled if layer.bias is None else scaled + _along(layer.bias - layer.bias * s, layer, output)


def _along(rows: Tensor, layer: nn.Module, like: Tensor) -> Tensor:
    """(rows, channels) with ones in between, so that the channels are where the layer has them in `like`."""
    ones = (1,) * (like.dim() - 2)
    return rows.view(len(rows), *ones, -1) if isinstance(layer, nn.Linear) else rows.view(len(rows), -1, *ones)
