"""A frozen backbone is computed once: `fit` then trains the last layer on its features."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from fsvi import ranks
from fsvi.functions.contexts import Batch, Dataset
from fsvi.functions.priors import Constant
from fsvi.inputs import Bundle
from fsvi.methods import FSVI, MAP, MFVI, VBLL, FixedMeanFSVI
from fsvi.methods.base import Method
from fsvi.networks.devices import forked_random
from fsvi.training.batches import TensorBatches
from fsvi.training.loop import Run

_METHODS = (MAP, MFVI, VBLL, FSVI, FixedMeanFSVI)
"""The methods whose loss sees the inputs through features only; classes derived from them may do anything."""
_ROWS = 256
_MOST_BYTES = 2**31
_TOLERANCE = 1e-4


def use_features(run: Run, shown: bool) -> None:
    """Train on features, computed now, if everything before the last layer is frozen and this is less work.

    The loss stays the same up to rounding. Features are computed in fixed chunks of the data, so that a resumed
    training has the same ones. The method itself stays as it is: callbacks and validation call it with inputs.

    Args:
        run: The run, about to train.
        shown: Whether to show progress.
    """
    method, batches = run.method, run.batches
    context = getattr(method, "context", None)
    points = context.data if type(context) is Dataset else None
    if not (isinstance(batches, TensorBatches) and _sees_features_only(run, context, points)):
        return
    num, num_points = len(batches.x), 0 if points is None else len(points)
    steps = run.epochs * batches.num_batches
    saved = run.epochs * num - num + (0 if points is None else steps * _points_per_step(method) - num_points)
    size = 4 * method.network.num_features * (num + num_points)
    if saved <= 0 or size > _MOST_BYTES or not _is_fixed(method, batches.x[:8]):
        return
    learner: Any = method._private()
    _start_at_features(learner.net, method.network.head)
    if points is not None:
        learner.context = Dataset(_features(method, points, shown))
    run.batches = copy.copy(batches)
    run.batches.x = _features(method, batches.x, shown)
    run.stepper.method = learner.train()


def _sees_features_only(run: Run, context: Any, points: Any) -> bool:
    """Whether the loss is a function of features of data in memory, and these of frozen parameters."""
    method, network = run.method, run.method.network
    if type(method) not in _METHODS or ranks.size() > 1 or run.stepper.precision is not None:
        return False
    if type(context) not in (type(None), Batch) and not isinstance(points, (Tensor, Bundle)):
        return False
    if type(method) is FSVI and type(method.prior) is not Constant:
        return False
    if network.layout.positions or network.layout.is_moved or network.is_tied or network.output is not None:
        return False
    module = network.module
    if module._forward_hooks or module._forward_pre_hooks or isinstance(module, torch.jit.ScriptModule):
        return False
    before = [p for name, p in module.named_parameters() if name not in network.head_names]
    return type(network.linear) is nn.Linear and bool(before) and not any(p.requires_grad for p in before)


def _points_per_step(method: Any) -> int:
    return int(method.num_context) * int(getattr(method, "num_context_sets", 1))


@torch.no_grad()
def _is_fixed(method: Method, x: Any) -> bool:
    """Whether features in training are those in prediction: no dropout, no statistics of the batch."""
    network, state = method.network, copy.deepcopy(method.state_dict())
    with forked_random(method.device):
        before = torch.get_rng_state()
        trained = method.train().network.features(network.arranged(x))
        is_untouched = torch.equal(before, torch.get_rng_state())
    same = all(torch.equal(value, state[name]) for name, value in method.state_dict().items())
    method.load_state_dict(state)
    predicted = method.eval().network.features(network.arranged(x))
    return is_untouched and same and torch.allclose(trained, predicted, rtol=_TOLERANCE, atol=_TOLERANCE)


@torch.no_grad()
def _features(method: Method, x: Any, shown: bool) -> Tensor:
    """The features of all inputs, on the device of the inputs, in eval mode."""
    from rich.console import Console  # which draws from Python's global random numbers when it is imported
    from rich.progress import track

    network = method.eval().network
    chunks = track(x.split(_ROWS), "features", console=Console(stderr=True), transient=True, disable=not shown)
    return torch.cat([network.features(network.arranged(chunk)).to(x.device) for chunk in chunks])


def _start_at_features(net: nn.Module, head: str) -> None:
    """Let the network take features: a class of its own, which copies of the network keep, has another `forward`."""

    def forward(self: nn.Module, features: Tensor) -> Any:
        return self.get_submodule(head)(features)

    net.__class__ = type(type(net).__name__, (type(net),), {"forward": forward})
