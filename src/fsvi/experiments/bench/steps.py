"""The training steps that the benchmark compares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fsvi.experiments.bench.jacobian import JacobianFSVI
from fsvi.functions.contexts import Dataset
from fsvi.likelihoods import Categorical
from fsvi.methods import FSVI, MAP, Method
from fsvi.networks import Network, cnn, mlp, resnet18
from fsvi.training.optimizers import check_optimizer, make_optimizer
from fsvi.training.step import take_step

_CLASSES = 10
_NUM_DATA = 60_000
_CONTEXT_IMAGES = 512
_LEARNING_RATE = 1e-4
_CONTEXT_PASSES = {"map": 0, "jvp": 9, "conditional": 3, "last_layer": 3}
"""What a context point costs, in forward passes of one input: a dual forward is 3, and a backward twice its forward."""

_ONE_DRAW = {"num_samples": 1, "num_context_sets": 1}
_SETTINGS: dict[str, dict[str, Any]] = {
    "jvp": {"linearize": "jvp"},
    "conditional": {"linearize": "conditional"},
    "last_layer": {"stochastic": "last_layer"},
    "jacobian": {},
}

FSVI_METHODS = ("jvp", "conditional", "last_layer")


class Architecture(NamedTuple):
    """A network of the benchmark.

    Attributes:
        make: A function that makes it.
        shape: The shape of one input.
    """

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]


def _dense(*hidden: int) -> Architecture:
    return Architecture(partial(mlp, 784, hidden, _CLASSES), (784,))


NETWORKS = {
    "mlp 100": _dense(100),
    "mlp 400-400": _dense(400, 400),
    "mlp 2000-2000": _dense(2000, 2000),
    "cnn": Architecture(cnn, (1, 28, 28)),
    "resnet18": Architecture(resnet18, (3, 32, 32)),
}


@dataclass(frozen=True)
class BenchStep:
    """One training step.

    Attributes:
        network: A key of `NETWORKS`.
        method: "map", one of `FSVI_METHODS`, or "jacobian".
        batch_size: The number of examples.
        num_context: The number of context points.
        channels_last: Whether images and convolution weights are in channels-last order.
    """

    network: str
    method: str
    batch_size: int
    num_context: int
    channels_last: bool = True

    @property
    def plain(self) -> BenchStep:
        """The MAP step that this one is compared with."""
        return replace(self, method="map", num_context=0)

    @property
    def limit(self) -> float | None:
        """The ratio to the MAP step that counting passes gives, (3B + passes·K) / 3B, every layer alike.

        With many context points `jvp` does better: the first layer's input does not move, which spares it a third.
        """
        passes = _CONTEXT_PASSES.get(self.method)
        return None if passes is None else 1 + passes * self.num_context / (3 * self.batch_size)

    @property
    def num_parameters(self) -> int:
        """How many numbers the network learns."""
        return sum(p.numel() for p in NETWORKS[self.network].make().parameters())

    def make_method(self) -> Method:
        """The method, untrained."""
        net = Network(NETWORKS[self.network].make(), channels_last=self.channels_last)
        if self.method == "map":
            return MAP(net, Categorical())
        make = JacobianFSVI if self.method == "jacobian" else FSVI
        context = Dataset(self.inputs(_CONTEXT_IMAGES))
        settings = {**_ONE_DRAW, **_SETTINGS[self.method]}
        return make(net, Categorical(), context, num_context=self.num_context, **settings)

    def make_action(self) -> Callable[[], None]:
        """A function that makes the step, as `fit` does, on random data."""
        return training_action(self.make_method(), self.inputs(self.batch_size))

    def inputs(self, num: int) -> Tensor:
        """Random inputs of the network's shape."""
        return torch.randn(num, *NETWORKS[self.network].shape)


def training_action(method: Method, x: Tensor) -> Callable[[], None]:
    """A function that makes one training step, as `fit` does, with random labels.

    Args:
        method: The method.
        x: Inputs of the minibatch.
    """
    x, y = method.check_batch(x, torch.randint(_CLASSES, (len(x),)))
    method.begin(x, _NUM_DATA)
    method.fit_prior(x, y)
    method.train()
    own = method.own_optimizer(_LEARNING_RATE)
    optimizer = own or make_optimizer(check_optimizer("adam"), method.parameter_groups(_LEARNING_RATE))

    def act() -> None:
        take_step(method, optimizer, x, y)

    return act
