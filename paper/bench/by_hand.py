"""Steps and predictions in plain PyTorch, as one would write them by hand for one network.

A plain step is what all others are compared with. FSVI written by hand is `docs/gallery/fsvi_in_one_file.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from fsvi.inputs import Inputs, concatenate

LEARNING_RATE = 1e-4
NUM_DATA = 60_000

_CHUNK = 512
"""Inputs per forward pass of a prediction, as in `predict`."""
_RATE = 0.1
"""The dropout rate that MC dropout has by default."""

Action = Callable[[], Any]


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


def _drops(net: nn.Module) -> bool:
    return any(isinstance(layer, nn.Dropout) and layer.p > 0 for layer in net.modules())
