"""Training steps and predictions to time: in plain PyTorch, as one would write them by hand, and those of fsvi."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from fsvi.functions.contexts import Dataset
from fsvi.inputs import Bundle, Inputs
from fsvi.likelihoods import Categorical
from fsvi.methods import Method, make_method
from fsvi.networks import Network, ResNet, TextEncoder, cnn, mlp
from fsvi.training import fit
from fsvi.training.loop import Stepper
from fsvi.training.optimizers import check_optimizer, make_optimizer

LEARNING_RATE = 1e-4
NUM_DATA = 60_000
FSVI: dict[str, dict[str, Any]] = {
    "jvp": {"linearize": "jvp"},
    "conditional": {"linearize": "conditional"},
    "last_layer": {"stochastic": "last_layer"},
}
"""FSVI's ways of linearizing, with one draw and one context set per step."""
_CHUNK = 512
"""Inputs per forward pass of a prediction, as in `predict`."""
_CLASSES, _CONTEXT_INPUTS, _VOCABULARY, _WORDS = 10, 512, 5_000, 64

Action = Callable[[], Any]


@dataclass(frozen=True)
class Work:
    """What a step or a prediction outside of fsvi is given: a network that it may change, inputs, classes."""

    net: nn.Module
    x: Inputs
    y: Tensor

    def outputs(self) -> Tensor:
        """The network's outputs."""
        return call(self.net, self.x)


def call(net: nn.Module, x: Inputs, tensors: dict[str, Tensor] | None = None) -> Tensor:
    """The outputs at inputs that are a tensor, or a dictionary of arguments; `tensors` replace parameters."""
    args, kwargs = ((x,), {}) if isinstance(x, Tensor) else ((), x.tree)
    outputs: Tensor = net(*args, **kwargs) if tensors is None else functional_call(net, tensors, args, kwargs)
    return outputs


def plain_step(work: Work) -> Action:
    """A training step of maximum likelihood."""
    return adam_step(work.net, lambda: F.cross_entropy(work.outputs(), work.y))


def plain_forward(work: Work) -> Action:
    """A forward pass of the network."""
    return predicting(work, lambda x: call(work.net, x))


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


_SHAPES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...] | None]] = {
    "cnn": (cnn, (1, 28, 28)),
    "cnn with dropout": (partial(cnn, dropout=0.1), (1, 28, 28)),
    "resnet18": (ResNet, (3, 32, 32)),
    "transformer": (partial(TextEncoder, _VOCABULARY, _CLASSES, width=128, layers=2, heads=4, length=_WORDS), None),
}


def network_of(name: str) -> tuple[Callable[[], nn.Module], tuple[int, ...] | None]:
    """A network and the shape of an input (None for texts) by its name; "mlp 400-200" has two hidden layers."""
    if name.startswith("mlp "):
        return partial(mlp, 784, tuple(map(int, name[4:].split("-"))), _CLASSES), (784,)
    return _SHAPES[name]


@dataclass(frozen=True)
class Size:
    """What is measured: a network, the number of examples B, and of context points K."""

    network: str
    batch: int
    context: int

    def inputs(self, num: int) -> Inputs:
        """Random inputs of the network's shape; texts are token ids and a mask."""
        shape = network_of(self.network)[1]
        if shape is not None:
            return torch.randn(num, *shape)
        mask = (torch.arange(_WORDS) < torch.randint(_WORDS // 2, _WORDS + 1, (num, 1))).long()
        return Bundle({"input_ids": torch.randint(_VOCABULARY, (num, _WORDS)), "attention_mask": mask})

    def work(self, num: int) -> Work:
        """The network and inputs in fsvi's memory layout, for code outside of fsvi."""
        network = Network(network_of(self.network)[0]()).copied()
        x, y = network.arranged(self.inputs(num)), torch.randint(_CLASSES, (num,))
        return Work(network.module, x, y)

    def method(self, name: str) -> Method:
        """A method by its name in the registry, or one of FSVI's ways of linearizing."""
        settings: dict[str, Any] = {}
        if name in FSVI:
            settings = {"num_context": self.context, "num_samples": 1, "num_context_sets": 1, **FSVI[name]}
        elif name == "spg":
            settings = {"num_prior_steps": 1}  # it fits its prior before training, which is not part of a step
        make = network_of(self.network)[0]
        context = Dataset(self.inputs(_CONTEXT_INPUTS))
        return make_method("fsvi" if name in FSVI else name, make, Categorical(), context=context, **settings)

    def step(self, name: str) -> Action:
        """A function that makes one training step of fsvi on random data, as `fit` does."""
        method = self.method(name)
        x, y = method.check_batch(self.inputs(self.batch), torch.randint(_CLASSES, (self.batch,)))
        method.num_data = NUM_DATA
        method.begin(x, y)
        method.train()
        own = method.own_optimizer(LEARNING_RATE)
        step = Stepper(method, own or make_optimizer(check_optimizer("adam"), method, LEARNING_RATE))
        return lambda: step([(x, y, None)])

    def prediction(self, name: str, num: int, num_samples: int) -> Action:
        """A function that predicts random inputs with fsvi, after one training step."""
        method, inputs = self.method(name), self.inputs(num)
        examples = self.inputs(self.batch), torch.randint(_CLASSES, (self.batch,))
        fit(method, examples, epochs=1, batch_size=self.batch, lr=LEARNING_RATE, progress=False)
        return lambda: method.predict(inputs, num_samples=num_samples).mean
