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
from fsvi.networks.description import is_altered
from fsvi.networks.devices import forked_random
from fsvi.training.batches import TensorBatches
from fsvi.training.loop import Run

_METHODS = (MAP, MFVI, VBLL, FSVI, FixedMeanFSVI)
"""The methods whose loss sees the inputs through features only; classes derived from them may do anything."""
_MOST_BYTES = 2**31
_TOLERANCE = 1e-4


def use_features(run: Run) -> None:
    """Let a run train on features, computed now, if all layers before the last are frozen and this is less work.

    The loss stays the same up to rounding. Features are computed in fixed chunks of the data, so that a resumed
    training has the same ones. The method itself stays as it is: callbacks and validation call it with inputs.
    """
    method: Any = run.method
    batches, context = run.batches, getattr(method, "context", None)
    points = context.data if type(context) is Dataset else None
    if not (isinstance(batches, TensorBatches) and _sees_features_only(run, context, points)):
        return
    rows, per_epoch = len(batches.x), len(batches.x)
    if points is not None:
        rows += len(points)
        per_epoch += batches.num_batches * method.num_context * getattr(method, "num_context_sets", 1)
    size = 4 * method.network.num_features * rows
    if run.epochs * per_epoch <= rows or size > _MOST_BYTES or not _is_fixed(method, batches.x[:8]):
        return
    learner: Any = method._private()
    learner.net.forward = learner.network.linear.__call__  # the network takes features now
    if points is not None:
        learner.context = Dataset(method.network.features_of_all(points))
    run.batches = copy.copy(batches)
    run.batches.x = method.network.features_of_all(batches.x)
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
    if is_altered(network.module):
        return False
    before = [p for name, p in network.module.named_parameters() if name not in network.head_names]
    return type(network.linear) is nn.Linear and bool(before) and not any(p.requires_grad for p in before)


@torch.no_grad()
def _is_fixed(method: Method, x: Any) -> bool:
    """Whether features in training are those in prediction: no dropout, no statistics of the batch."""
    copied, x = method._private().train(), method.network.arranged(x)
    with forked_random(method.device):
        before = torch.get_rng_state()
        trained = copied.network.features(x)
        is_untouched = torch.equal(before, torch.get_rng_state())
    same = all(torch.equal(b, own) for b, own in zip(copied.net.buffers(), method.net.buffers(), strict=True))
    predicted = copied.eval().network.features(x)
    return is_untouched and same and torch.allclose(trained, predicted, rtol=_TOLERANCE, atol=_TOLERANCE)
