"""The training steps that the benchmark compares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from fsvi.functions.contexts import Dataset
from fsvi.inputs import Bundle, Inputs
from fsvi.likelihoods import Categorical
from fsvi.methods import FSVI, IVON, MAP, MFVI, Laplace, MCDropout, Method
from fsvi.networks import Network, cnn, mlp, resnet18, text_encoder
from fsvi.training.optimizers import check_optimizer, make_optimizer
from fsvi.training.step import Stepper
from paper.bench.by_hand import LEARNING_RATE, NUM_DATA, Work, plain_step
from paper.bench.jacobian import JacobianFSVI
from paper.bench.peers import STEPS

PLAIN = "plain"
"""The step that all others are compared with: a loop written by hand, with torch.optim."""

_CLASSES = 10
_CONTEXT_INPUTS = 512
_VOCABULARY, _WORDS = 5_000, 64
_CONTEXT_PASSES = {PLAIN: 0, "map": 0, "jvp": 9, "conditional": 3, "last_layer": 3}
"""What a context point costs, in forward passes of one input: a dual forward is 3, and a backward twice its forward."""

_ONE_DRAW = {"num_samples": 1, "num_context_sets": 1}
_SETTINGS: dict[str, dict[str, Any]] = {
    "jvp": {"linearize": "jvp"},
    "conditional": {"linearize": "conditional"},
    "last_layer": {"stochastic": "last_layer"},
    "jacobian": {},
}
_OTHERS: dict[str, Callable[[Network, Categorical], Method]] = {
    "map": MAP,
    "mfvi": MFVI,
    "ivon": IVON,
    "mc_dropout": MCDropout,
    "laplace": Laplace,
    "laplace probit": partial(Laplace, integral="probit"),
}

FSVI_METHODS = ("jvp", "conditional", "last_layer")


class Architecture(NamedTuple):
    """A network of the benchmark.

    Attributes:
        make: A function that makes it.
        shape: The shape of one input; None for texts.
    """

    make: Callable[[], nn.Module]
    shape: tuple[int, ...] | None


def _dense(*hidden: int) -> Architecture:
    return Architecture(partial(mlp, 784, hidden, _CLASSES), (784,))


def _dropping(architecture: Architecture) -> Architecture:
    """The same sequence of layers with dropout before the last."""

    def make() -> nn.Module:
        *layers, head = architecture.make().children()
        return nn.Sequential(*layers, nn.Dropout(0.1), head)

    return Architecture(make, architecture.shape)


WIDTHS = (50, 100, 200, 400, 800, 1600)
DEPTHS = (1, 2, 4, 8, 16)
OUTPUTS = (10, 30, 100, 300, 1000)


def wide(width: int) -> str:
    """The name of the dense network with two hidden layers of this width."""
    return f"mlp {width}-{width}"


def deep(depth: int) -> str:
    """The name of the dense network with this many hidden layers of 200 units."""
    return f"mlp {depth}×200"


def classifying(outputs: int) -> str:
    """The name of the CNN with this many outputs."""
    return f"cnn ({outputs} classes)"


def dropping(network: str) -> str:
    """The name of the same network with dropout before its last layer."""
    return f"{network} with dropout"


_CNN = Architecture(cnn, (1, 28, 28))
NETWORKS = {
    "mlp 100": _dense(100),
    dropping("mlp 100"): _dropping(_dense(100)),
    **{wide(width): _dense(width, width) for width in (*WIDTHS, 2000)},
    **{deep(depth): _dense(*[200] * depth) for depth in DEPTHS},
    "cnn": _CNN,
    dropping("cnn"): _dropping(_CNN),
    **{classifying(outputs): Architecture(partial(cnn, num_classes=outputs), (1, 28, 28)) for outputs in OUTPUTS},
    "resnet18": Architecture(resnet18, (3, 32, 32)),
    "resnet18 (1000 classes)": Architecture(partial(resnet18, num_classes=1000), (3, 32, 32)),
    "transformer": Architecture(
        partial(text_encoder, _VOCABULARY, _CLASSES, width=128, layers=2, heads=4, length=_WORDS), None
    ),
}


@dataclass(frozen=True)
class BenchStep:
    """One training step.

    Attributes:
        network: A key of `NETWORKS`.
        method: "plain", "map", one of `FSVI_METHODS`, "jacobian", another method, or a key of `peers.STEPS`.
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
        """The step of plain PyTorch that this one is compared with."""
        return replace(self, method=PLAIN, num_context=0)

    @property
    def limit(self) -> float | None:
        """The ratio to the plain step that counting passes gives, (3B + passes·K) / 3B, every layer alike.

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
        if self.method in _OTHERS:
            return _OTHERS[self.method](net, Categorical())
        make = JacobianFSVI if self.method == "jacobian" else FSVI
        context = Dataset(self.inputs(_CONTEXT_INPUTS))
        settings = {**_ONE_DRAW, **_SETTINGS[self.method]}
        return make(net, Categorical(), context, num_context=self.num_context, **settings)

    def make_action(self) -> Callable[[], None]:
        """A function that makes the step on random data; fsvi's steps are those of `fit`."""
        if self.method == PLAIN:
            return plain_step(self.make_work(self.batch_size))
        if self.method in STEPS:
            return STEPS[self.method].make(self.make_work(self.batch_size))
        return training_action(self.make_method(), self.inputs(self.batch_size))

    def make_work(self, num: int, num_samples: int = 1) -> Work:
        """The network, `num` inputs and a pool of context points in the step's memory layout, for code outside of fsvi.

        Args:
            num: The number of inputs.
            num_samples: Draws per prediction.
        """
        network = Network(NETWORKS[self.network].make(), channels_last=self.channels_last).copied()
        y = torch.randint(_CLASSES, (num,))
        context = network.arranged(self.inputs(_CONTEXT_INPUTS)) if self.num_context else None
        return Work(network.module, network.arranged(self.inputs(num)), y, num_samples, context, self.num_context)

    def inputs(self, num: int) -> Inputs:
        """Random inputs of the network's shape; texts are token ids and a mask."""
        shape = NETWORKS[self.network].shape
        return random_texts(num) if shape is None else torch.randn(num, *shape)


def random_texts(num: int) -> Bundle:
    """Random token ids and a mask: texts of different lengths, from half of the most words to all of them."""
    lengths = torch.randint(_WORDS // 2, _WORDS + 1, (num, 1))
    mask = (torch.arange(_WORDS) < lengths).long()
    return Bundle({"input_ids": torch.randint(_VOCABULARY, (num, _WORDS)), "attention_mask": mask})


def training_action(method: Method, x: Inputs) -> Callable[[], None]:
    """A function that makes one training step, as `fit` does, with random labels.

    Args:
        method: The method.
        x: Inputs of the minibatch.
    """
    x, y = method.check_batch(x, torch.randint(_CLASSES, (len(x),)))
    method.begin(x, NUM_DATA)
    method.fit_prior(x, y)
    method.train()
    own = method.own_optimizer(LEARNING_RATE)
    optimizer = own or make_optimizer(check_optimizer("adam"), method.parameter_groups(LEARNING_RATE))
    step = Stepper(method, optimizer)

    def act() -> None:
        step([(x, y, None)])

    return act
