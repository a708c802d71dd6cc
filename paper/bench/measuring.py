"""Training steps and predictions on small networks, their times and their memory."""

from __future__ import annotations

import ctypes
import multiprocessing
import random
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from fsvi.functions.contexts import Dataset
from fsvi.inputs import Bundle, Inputs
from fsvi.likelihoods import Categorical
from fsvi.methods import Method, make_method
from fsvi.networks import Network, cnn, mlp, resnet18, text_encoder
from fsvi.training.optimizers import check_optimizer, make_optimizer
from fsvi.training.step import Stepper
from paper.bench.by_hand import LEARNING_RATE, NUM_DATA, Work, plain_forward, plain_step
from paper.bench.peers import PREDICTIONS, STEPS

PLAIN, FORWARD = "plain PyTorch", "forward pass"
"""What steps and predictions are compared with: a loop written by hand with torch.optim, and a pass of the network."""
FSVI: dict[str, dict[str, Any]] = {
    "jvp": {"linearize": "jvp"},
    "conditional": {"linearize": "conditional"},
    "last_layer": {"stochastic": "last_layer"},
}
"""FSVI's ways of linearizing, with one draw and one context set per step."""
_CLASSES, _CONTEXT_INPUTS = 10, 512
_VOCABULARY, _WORDS = 5_000, 64
Name = TypeVar("Name", bound=Hashable)


def _with_dropout(make: Callable[[], nn.Module]) -> nn.Module:
    """The same sequence of layers with dropout before the last."""
    *layers, head = make().children()
    return nn.Sequential(*layers, nn.Dropout(0.1), head)


_TEXT = partial(text_encoder, _VOCABULARY, _CLASSES, width=128, layers=2, heads=4, length=_WORDS)
_SHAPES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...] | None]] = {
    "cnn": (cnn, (1, 28, 28)),
    "mlp 100": (partial(mlp, 784, (100,), _CLASSES), (784,)),
    "resnet18": (resnet18, (3, 32, 32)),
    "transformer": (_TEXT, None),
}


def network_of(name: str) -> tuple[Callable[[], nn.Module], tuple[int, ...] | None]:
    """A network by its name, and the shape of an input; None for texts.

    "mlp 400-400" is a dense network with two hidden layers, "cnn (300 classes)" the CNN with as many outputs, and
    "cnn with dropout" has dropout before its last layer.
    """
    if name.endswith(" with dropout"):
        make, shape = network_of(name.removesuffix(" with dropout"))
        return partial(_with_dropout, make), shape
    if name in _SHAPES:
        return _SHAPES[name]
    if name.startswith("mlp "):
        return partial(mlp, 784, tuple(map(int, name[4:].split("-"))), _CLASSES), (784,)
    return partial(cnn, num_classes=int(name[5:].split()[0])), (1, 28, 28)


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

    def work(self, num: int, num_samples: int = 1) -> Work:
        """The network, inputs and context points in fsvi's memory layout, for code outside of fsvi."""
        network = Network(network_of(self.network)[0](), channels_last=True).copied()
        context = network.arranged(self.inputs(_CONTEXT_INPUTS)) if self.context else None
        x, y = network.arranged(self.inputs(num)), torch.randint(_CLASSES, (num,))
        return Work(network.module, x, y, num_samples, context, self.context)

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

    def step(self, name: str) -> Callable[[], Any]:
        """A function that makes one training step on random data; fsvi's steps are those of `fit`."""
        if name == PLAIN:
            return plain_step(self.work(self.batch))
        if name in STEPS:
            return STEPS[name].make(self.work(self.batch))
        return training_step(self.method(name), self.inputs(self.batch))

    def prediction(self, name: str, num: int, num_samples: int) -> Callable[[], Any]:
        """A function that predicts random inputs, after one training step."""
        if name == FORWARD:
            return plain_forward(self.work(num))
        if name in PREDICTIONS:
            return PREDICTIONS[name].make(Size(self.network, self.batch, 0).work(num, num_samples))
        method, x = self.method(name), self.inputs(self.batch)
        training_step(method, x)()
        batch = method.check_batch(x, torch.zeros(len(x), dtype=torch.int64))
        method.progress = 1.0
        method.after_epoch(lambda: [batch])
        method.finish(lambda: [batch])
        method.eval()
        inputs = self.inputs(num)
        return lambda: method.predict(inputs, num_samples=num_samples).mean


def training_step(method: Method, x: Inputs) -> Callable[[], Any]:
    """A function that makes one training step, as `fit` does, with random labels."""
    x, y = method.check_batch(x, torch.randint(_CLASSES, (len(x),)))
    method.num_data = NUM_DATA
    method.begin(x, y)
    method.train()
    own = method.own_optimizer(LEARNING_RATE)
    step = Stepper(method, own or make_optimizer(check_optimizer("adam"), method, LEARNING_RATE))
    return lambda: step([(x, y, None)])


# Times --------------------------------------------------------------------------------------------------------------


def interleave(actions: Mapping[Name, Callable[[], Any]], rounds: int) -> dict[Name, list[float]]:
    """The seconds of each action in each round.

    Every round gives all actions a turn, in a new order, so that none owes its time to its place or its moment. A turn
    begins with a run that is not counted: as in training, a step then follows one of its own kind.
    """
    seconds: dict[Name, list[float]] = {name: [] for name in actions}
    order, shuffle = list(actions), random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)
        for name in order:
            actions[name]()
            started = time.perf_counter()
            actions[name]()
            seconds[name].append(time.perf_counter() - started)
    return seconds


def spread(values: Sequence[float], digits: int = 2) -> dict[str, float]:
    """The median, and half the distance between the quartiles."""
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
    return {"median": round(middle, digits + 2), "half": round((high - low) / 2, digits + 2)}


def costs(actions: Mapping[str, Callable[[], Any]], base: str, rounds: int) -> dict[str, dict[str, Any]]:
    """Milliseconds of every action, and its ratio to `base` round by round, so that slow rounds cancel."""
    seconds = interleave(actions, rounds)
    return {
        name: {
            "ms": spread([1e3 * value for value in values]),
            "ratio": spread([value / other for value, other in zip(values, seconds[base], strict=True)]),
        }
        for name, values in seconds.items()
    }


# Memory -------------------------------------------------------------------------------------------------------------


def step_memory(size: Size, name: str, repeats: int = 3) -> float:
    """MB that training adds to a process: a median over processes, because allocators behave differently in each."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "torch._dynamo"])  # imported once, not by every process
    found = []
    for _ in range(repeats):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_measure_memory, args=(size, name, torch.get_num_threads(), sender))
        process.start()
        sender.close()
        found.append(receiver.recv())
        process.join()
    return float(median(found))


def _measure_memory(size: Size, name: str, threads: int, sender: Connection) -> None:
    torch.set_num_threads(threads)
    Size("cnn", 2, 2).step(name)()
    ctypes.CDLL(None).malloc_trim(0)  # what the allocator keeps of the warm-up would hide as much of what training adds
    before = _resident("VmRSS")
    act = size.step(name)
    for _ in range(2):  # the optimizer's state exists from the second step on
        act()
    sender.send(_resident("VmHWM") - before)


def _resident(field: str) -> float:
    """MB that this process holds, or has held at most; Linux only."""
    status = Path("/proc/self/status").read_text().splitlines()
    return int(dict(line.split(":", 1) for line in status)[field].split()[0]) / 2**10
