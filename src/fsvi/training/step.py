"""One optimizer step, for `fit` and for training loops of your own."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from fsvi import ranks
from fsvi.errors import InvalidInputError, NonFiniteLossError
from fsvi.likelihoods import weighted
from fsvi.methods.base import Method
from fsvi.networks.parameters import batch_norms
from fsvi.training.batches import Batch, num_observed
from fsvi.validation import check_choice, check_positive

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}
_BATCH_NORM_OF_ONE = "Expected more than 1 value per channel"


class Stepper:
    """Makes optimizer steps: backward passes over one or more minibatches, a check, clipping, and the update.

    A plain loop needs none of it: `sum(method(x, y).values()).backward()` and `optimizer.step()` are a step. After an
    error, the method is as it was before the step. Several processes make steps together: each gives its minibatches,
    and all of them make the same update, as if the minibatches were one.

    Args:
        method: A method in training mode; its layers must not be replaced afterwards.
        optimizer: The optimizer of its parameters.
        clip_norm: The largest norm of the gradient; larger gradients are scaled down to it. The members of an ensemble
            are clipped one by one. None does not clip.
        precision: "bf16" or "fp16" computes the network in that type where torch considers it safe (autocast);
            parameters, divergences and updates keep their own. None computes everything in the network's type.
            "fp16" multiplies the loss by a factor that adapts itself, and skips a step whose gradient overflows.
    """

    def __init__(
        self, method: Method, optimizer: Optimizer, *, clip_norm: float | None = None, precision: str | None = None
    ) -> None:
        self.method, self.optimizer = method, optimizer
        self.clip_norm = None if clip_norm is None else check_positive("clip_norm", clip_norm)
        self.precision = None if precision is None else check_choice("precision", precision, PRECISIONS)
        self._scaler = torch.amp.GradScaler(method.device.type, enabled=precision == "fp16")
        self._norms = batch_norms(method)
        self._learned = [[p for p in learner.parameters() if p.requires_grad] for learner in method.learners()]
        self._together = None if ranks.size() == 1 else _together(method)

    def __call__(self, batches: Sequence[Any], epoch: int = 1, observed: float | None = None) -> dict[str, float]:
        """One step on one or more minibatches, which count by their numbers of observed targets.

        Args:
            batches: The minibatches: inputs and targets, validated by `method.check_batch`, and perhaps weights.
            epoch: The number of the epoch, for error messages.
            observed: The number of observed targets in the minibatches of all processes; None counts them.

        Returns:
            The terms of the loss by name, averaged over the minibatches; empty without any observed target.
        """
        given = [self._counted(Batch(*batch)) for batch in batches]
        if observed is None:
            observed = ranks.total(sum(batch.observed or 0 for batch in given))
        if not observed:
            return {}
        given = [batch for batch in given if batch.observed] or given[:1]  # a process without targets takes part
        self.optimizer.zero_grad(set_to_none=True)
        with _restored_on_error(self._norms):
            terms = self._backward(given, observed)
            self._scaler.unscale_(self.optimizer) if self._scaler.is_enabled() else None
            gradients = [[p for p in group if p.grad is not None] for group in self._learned]
            norms = [get_total_norm([p.grad for p in group if p.grad is not None]) for group in gradients]
            values = torch.stack([*terms.values(), *norms]).tolist()  # the only time that a step waits for the device
            read = dict(zip(terms, values, strict=False))
            overflows = self._find_problem(read, values[len(terms) :], epoch)
        if not overflows:
            for group, norm in zip(gradients, norms, strict=True):
                if self.clip_norm is not None:
                    clip_grads_with_norm_(group, self.clip_norm, norm)
            self.optimizer.step()
            for learner in self.method.learners():
                learner.after_step()
        self._scaler.update() if self._scaler.is_enabled() else None
        return read

    def state(self) -> dict[str, Any]:
        """What a checkpoint must keep."""
        return self._scaler.state_dict()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self._scaler.load_state_dict(dict(state))

    def _counted(self, batch: Batch) -> Batch:
        count = num_observed(self.method.likelihood, batch.y) if batch.observed is None else batch.observed
        return batch._replace(observed=count)

    def _backward(self, batches: Sequence[Batch], observed: float) -> dict[str, Tensor]:
        """Add up the gradients of all minibatches; the terms, averaged over the minibatches of all processes."""
        means: dict[str, Tensor] = {}
        for number, batch in enumerate(batches, start=1):
            is_last = number == len(batches)
            share = ranks.size() * (batch.observed or 0) / observed  # processes average their gradients
            with nullcontext() if is_last or self._together is None else self._together.no_sync():
                terms = self._forward(batch)
                self._scaler.scale(share * torch.stack(list(terms.values())).sum()).backward()
            for name, term in terms.items():
                means[name] = means.get(name, 0.0) + share * term.detach()
        ranks.all_sum(list(means.values()))
        return {name: mean / ranks.size() for name, mean in means.items()}

    def _forward(self, batch: Batch) -> dict[str, Tensor]:
        terms = self.method.forward if self._together is None else self._together
        try:
            with weighted(self.method, batch.weights), self._autocast():
                return terms(batch.x, batch.y)
        except ValueError as error:
            if len(batch.y) == 1 and str(error).startswith(_BATCH_NORM_OF_ONE):
                raise InvalidInputError(
                    "BatchNorm cannot be trained on a batch of one example: use a batch_size of at least 2."
                ) from error
            raise

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.precision is None:
            return nullcontext()
        return torch.autocast(self.method.device.type, dtype=PRECISIONS[self.precision])

    def _find_problem(self, terms: Mapping[str, float], norms: Sequence[float], epoch: int) -> bool:
        """Refuse a step that would spoil the parameters; whether the gradient merely overflows in fp16."""
        wrong = [f"the {name} term of the loss became {value}" for name, value in terms.items() if _is_bad(value)]
        if not wrong and any(map(_is_bad, norms)):
            if self._scaler.is_enabled() and self._scaler.get_scale() > 1:
                return True
            wrong = ["the gradient of the loss became NaN or infinite"]
        if wrong:
            rate = self.optimizer.param_groups[0]["lr"]
            raise NonFiniteLossError(
                f"{wrong[0]} in epoch {epoch}: lower the learning rate (now {rate:.3g}), or check the data's scale; no "
                "step was made."
            )
        return False


def _together(method: Method) -> DistributedDataParallel:
    """The method with gradients that are averaged over processes; it starts as on the first process."""
    warnings.filterwarnings("ignore", "find_unused_parameters=True was specified")
    return DistributedDataParallel(method, broadcast_buffers=False, find_unused_parameters=True)


def _is_bad(value: float) -> bool:
    return not math.isfinite(value)


@contextmanager
def _restored_on_error(norms: Sequence[nn.Module]) -> Iterator[None]:
    """Give BatchNorm layers their statistics back if the step fails; nothing else changes before the optimizer's."""
    buffers = [buffer for layer in norms for buffer in layer.buffers(recurse=False)]
    before = [buffer.clone() for buffer in buffers]
    try:
        yield
    except BaseException:
        for buffer, value in zip(buffers, before, strict=True):
            buffer.copy_(value)
        raise
