"""Steps and predictions in plain PyTorch, as one would write them by hand for one network.

A plain step is what all others are compared with. FSVI's steps written by hand follow its formula line by line, with
autograd for every gradient: they show what the formula costs in PyTorch without a library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp
from torch.nn import functional as F

from fsvi.inputs import Inputs, concatenate

LEARNING_RATE = 1e-4
NUM_DATA = 60_000

_CHUNK = 512
"""Inputs per forward pass of a prediction, as in `predict`."""
_VARIANCE, _NUGGET = 0.5, 1e-2
"""The prior and the nugget that FSVI has by default."""
_LOG_STD = -4.0
"""Where log standard deviations start; costs do not depend on it."""
_RATE = 0.1
"""The dropout rate that MC dropout has by default."""

_NORMS = nn.modules.batchnorm._BatchNorm

Action = Callable[[], Any]
_Pass: TypeAlias = tuple[Tensor, Tensor]
"""Features and outputs."""


@dataclass(frozen=True)
class Work:
    """What a step or a prediction is given.

    Attributes:
        net: The network, which it may change.
        x: Inputs in the network's memory layout.
        y: Their classes.
        num_samples: Draws per prediction.
        context: Inputs among which context points are drawn, for steps that need them.
        num_context: The number of context points.
    """

    net: nn.Module
    x: Inputs
    y: Tensor
    num_samples: int = 1
    context: Inputs | None = None
    num_context: int = 0

    def outputs(self) -> Tensor:
        """The network's outputs."""
        return call(self.net, self.x)

    def points(self) -> Inputs:
        """New context points."""
        assert self.context is not None
        chosen = torch.randperm(len(self.context))[: self.num_context]
        return self.context.index_select(0, chosen) if isinstance(self.context, Tensor) else self.context[chosen]


def call(net: nn.Module, x: Inputs, tensors: dict[str, Tensor] | None = None) -> Tensor:
    """The network's outputs at inputs that are a tensor, or a dictionary of arguments.

    Args:
        net: The network.
        x: The inputs.
        tensors: What replaces parameters of those names.
    """
    args, kwargs = ((x,), {}) if isinstance(x, Tensor) else ((), x.tree)
    outputs: Tensor = net(*args, **kwargs) if tensors is None else functional_call(net, tensors, args, kwargs)
    return outputs


# Point estimates ------------------------------------------------------------------------------------------------------


def plain_step(work: Work) -> Action:
    """A training step of maximum likelihood."""
    return adam_step(work.net, lambda: F.cross_entropy(work.outputs(), work.y))


def dropout_step(work: Work) -> Action:
    """The same with PyTorch's dropout: the network's own, or before every dense layer and convolution but the first."""
    layers = [layer for layer in work.net.modules() if isinstance(layer, (nn.Linear, nn.Conv2d))]
    for layer in [] if _drops(work.net) else layers[1:]:
        layer.register_forward_pre_hook(lambda _, args: F.dropout(args[0], _RATE))
    return plain_step(work)


def longer_step(work: Work) -> Action:
    """A training step of maximum likelihood on the minibatch and as many more examples as there are context points."""
    more = work.y[torch.arange(work.num_context) % len(work.y)]
    return plain_step(replace(work, x=concatenate([work.x, work.points()]), y=torch.cat([work.y, more])))


def plain_forward(work: Work) -> Action:
    """A forward pass of the network."""
    return predicting(work, lambda x: call(work.net, x))


def dropout_prediction(work: Work) -> Action:
    """Passes with the network's dropout layers on."""
    act = predicting(work, averaging(work, work.net))
    for layer in work.net.modules():
        if isinstance(layer, nn.Dropout):
            layer.train()
    return act


def adam_step(net: nn.Module, loss: Callable[[], Tensor]) -> Action:
    """A step of Adam on all parameters of `net`."""
    optimizer = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE, fused=True)
    net.train()

    def act() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return act


def predicting(work: Work, outputs: Callable[[Inputs], Tensor]) -> Action:
    """A prediction for all inputs, chunk by chunk."""
    work.net.eval()

    def act() -> Tensor:
        with torch.no_grad():
            return torch.cat([outputs(chunk) for chunk in work.x.split(_CHUNK)])

    return act


def averaging(work: Work, net: nn.Module) -> Callable[[Inputs], Tensor]:
    """Class probabilities, averaged over passes of a network that is random."""

    def average(x: Inputs) -> Tensor:
        return torch.stack([call(net, x).softmax(-1) for _ in range(work.num_samples)]).mean(0)

    return average


# FSVI -----------------------------------------------------------------------------------------------------------------


def last_layer_loss(work: Work) -> Callable[[], Tensor]:
    """FSVI's loss with a random last layer."""
    random = _RandomNetwork(work.net, [name for name, _ in _head(work.net)])

    def loss() -> Tensor:
        (features, outputs), (others, means) = random.two_passes(work.x, work.points())
        variance = random.head_variance()
        std = (_with_ones(features).square() @ variance.T).sqrt()
        nll = F.cross_entropy(outputs + std * torch.randn_like(std), work.y)
        return nll + function_kl(means, _with_ones(others), variance) / NUM_DATA

    return loss


def conditional_loss(work: Work) -> Callable[[], Tensor]:
    """FSVI's loss with all layers random, and one draw for the likelihood and the features of the context."""
    random = _RandomNetwork(work.net, _random_names(work.net))

    def loss() -> Tensor:
        (_, outputs), (features, _) = random.two_passes(work.x, work.points(), random.moved(random.draw()))
        return F.cross_entropy(outputs, work.y) + random.head_kl(features) / NUM_DATA

    return loss


def jvp_loss(work: Work) -> Callable[[], Tensor]:
    """FSVI's loss with all layers random, and features linearized along the draw by `torch.func.jvp`."""
    random = _RandomNetwork(work.net, _random_names(work.net))

    def loss() -> Tensor:
        shifts, points = random.draw(), work.points()
        nll = F.cross_entropy(call(work.net, work.x, random.moved(shifts)), work.y)
        starts, directions = ({name: each[name] for name in random.feature_names} for each in (random.means, shifts))
        at_points = partial(random.context_pass, points)
        features, change = jvp(lambda tensors: at_points(tensors)[0], (starts,), (directions,))[:2]
        return nll + random.head_kl(features, change) / NUM_DATA

    return loss


def function_kl(mean: Tensor, features: Tensor, variance: Tensor) -> Tensor:
    """Σₖ KL(N(mean[:, k], Φ diag(variance[k]) Φᵀ + nugget·I) ‖ N(0, (v + nugget)·I)), in float64.

    Args:
        mean: The means at K points, (K, Q).
        features: Φ, (K, R).
        variance: The variances of the last layer's weights, (Q, R).
    """
    mean, features, variance = mean.double(), features.double(), variance.double()
    covariance = (features * variance[:, None]) @ features.T
    covariance.diagonal(dim1=-2, dim2=-1).add_(_NUGGET)
    prior = _VARIANCE + _NUGGET
    quadratic = (covariance.diagonal(dim1=-2, dim2=-1).sum() + mean.square().sum()) / prior
    logs = 2 * torch.linalg.cholesky(covariance).diagonal(dim1=-2, dim2=-1).log().sum()
    return 0.5 * (quadratic + mean.numel() * (math.log(prior) - 1) - logs).float()


class _RandomNetwork:
    """A network some of whose parameters have standard deviations, which become parameters of the network, too.

    The last layer is random and has a bias. Context points are seen in eval mode: they neither move the statistics of
    BatchNorm nor lose inputs to dropout. In other networks, they join the minibatch.
    """

    def __init__(self, net: nn.Module, names: list[str]) -> None:
        self.net = net
        self.joins = not _drops(net) and not any(isinstance(layer, _NORMS) for layer in net.modules())
        self.head = dict(_head(net))
        self.means = {name: net.get_parameter(name) for name in names}
        self.feature_names = [name for name in names if name not in self.head]
        self.logs = {name: nn.Parameter(torch.full_like(mean, _LOG_STD)) for name, mean in self.means.items()}
        for number, log_std in enumerate(self.logs.values()):
            net.register_parameter(f"log_std_{number}", log_std)
        self._inputs: list[Tensor] = []
        _last_linear(net)[1].register_forward_pre_hook(lambda _, args: self._inputs.append(args[0]))

    def draw(self) -> dict[str, Tensor]:
        """A draw of the parameters minus their means."""
        return {name: log_std.exp() * torch.randn_like(log_std) for name, log_std in self.logs.items()}

    def moved(self, shifts: dict[str, Tensor]) -> dict[str, Tensor]:
        """The means plus `shifts`."""
        return {name: mean + shifts[name] for name, mean in self.means.items()}

    def two_passes(self, x: Inputs, points: Inputs, tensors: dict[str, Tensor] | None = None) -> tuple[_Pass, _Pass]:
        """Features and outputs of the minibatch, and those of the context points."""
        if not self.joins:
            return self._pass(x, tensors), self.context_pass(points, tensors)
        features, outputs = self._pass(concatenate([x, points]), tensors)
        num = len(x)
        return (features[:num], outputs[:num]), (features[num:], outputs[num:])

    def context_pass(self, points: Inputs, tensors: dict[str, Tensor] | None = None) -> _Pass:
        """Features and outputs of the context points alone."""
        if self.joins:
            return self._pass(points, tensors)
        self.net.eval()
        result = self._pass(points, tensors)
        self.net.train()
        return result

    def _pass(self, x: Inputs, tensors: dict[str, Tensor] | None) -> _Pass:
        self._inputs.clear()
        outputs = call(self.net, x, tensors)
        return self._inputs[-1], outputs

    def head_variance(self) -> Tensor:
        """The variances of the last layer's weights and biases, (Q, R)."""
        weight, bias = (self.logs[name] for name in self.head)
        return (2 * torch.cat([weight, bias[:, None]], 1)).exp()

    def head_kl(self, features: Tensor, change: Tensor | None = None) -> Tensor:
        """The KL at context points with these features; their `change` moves the means only."""
        mean = F.linear(features if change is None else features + change, *self.head.values())
        return function_kl(mean, _with_ones(features), self.head_variance())


def _with_ones(features: Tensor) -> Tensor:
    """The features, and a one for the bias."""
    return F.pad(features, (0, 1), value=1.0)


def _random_names(net: nn.Module) -> list[str]:
    """All parameters but BatchNorm's, which FSVI trains as points."""
    fixed = {id(p) for layer in net.modules() if isinstance(layer, _NORMS) for p in layer.parameters()}
    return [name for name, p in net.named_parameters() if id(p) not in fixed]


def _drops(net: nn.Module) -> bool:
    return any(isinstance(layer, nn.Dropout) and layer.p > 0 for layer in net.modules())


def _last_linear(net: nn.Module) -> tuple[str, nn.Linear]:
    return [(name, layer) for name, layer in net.named_modules() if isinstance(layer, nn.Linear)][-1]


def _head(net: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The last dense layer's weight and bias, with their names in the network."""
    name, layer = _last_linear(net)
    return ((f"{name}.{own}", parameter) for own, parameter in layer.named_parameters())
