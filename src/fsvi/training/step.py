"""One optimizer step, for `fit` and for training loops of your own."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from fsvi import ranks
from fsvi.errors import InvalidInputError, NonFiniteLossError
from fsvi.likelihoods import weighted
from fsvi.methods.base import Method
from fsvi.networks.parameters import batch_norms
from fsvi.training.batches import Minibatch, num_observed
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
        self.scaler = torch.amp.GradScaler(method.device.type, enabled=precision == "fp16")
        dtype = None if precision is None else PRECISIONS[precision]
        self._autocast = torch.autocast(method.device.type, dtype=dtype) if dtype else nullcontext()
        self._statistics = [buffer for layer in batch_norms(method) for buffer in layer.buffers(recurse=False)]
        self._learners = method.learners()
        self._learned = [[p for p in learner.parameters() if p.requires_grad] for learner in self._learners]
        self._size = ranks.size()
        self._together = None if self._size == 1 else _together(method)

    def __call__(self, batches: Sequence[Any], epoch: int = 1, observed: float | None = None) -> dict[str, float]:
        """One step on one or more minibatches, which count by their numbers of observed targets.

        Args:
            batches: The minibatches: inputs and targets, validated by `method.check_batch`, and perhaps weights.
            epoch: The number of the epoch, for error messages.
            observed: The number of observed targets in the minibatches of all processes; None counts them.

        Returns:
            The terms of the loss by name, averaged over the minibatches; empty without any observed target.
        """
        if observed is None:
            count = self.method.likelihood
            given = [Minibatch(*batch)._replace(observed=num_observed(count, batch[1])) for batch in batches]
            observed = ranks.total(sum(batch.observed or 0 for batch in given))
            batches = [batch for batch in given if batch.observed] or given[:1]  # one without targets takes part
        if not observed:
            return {}
        self.optimizer.zero_grad(set_to_none=True)
        before = [buffer.clone() for buffer in self._statistics]
        try:
            terms = self._backward(batches, observed)
            if self.scaler.is_enabled():
                self.scaler.unscale_(self.optimizer)
            norms = []
            for learned in self._learned:
                norms.append(get_total_norm([p.grad for p in learned if p.grad is not None]))
            values = torch.stack([*terms.values(), *norms]).tolist()  # the only time that a step waits for the device
            read = dict(zip(terms, values, strict=False))
            overflows = not all(map(math.isfinite, values)) and self._find_problem(read, epoch)
        except BaseException:  # nothing but the statistics of BatchNorm has changed
            for buffer, value in zip(self._statistics, before, strict=True):
                buffer.copy_(value)
            raise
        if not overflows:
            if self.clip_norm is not None:
                for learned, norm in zip(self._learned, norms, strict=True):
                    clip_grads_with_norm_(learned, self.clip_norm, norm)
            self.optimizer.step()
            for learner in self._learners:
                learner.after_step()
        if self.scaler.is_enabled():
            self.scaler.update()
        return read

    def _backward(self, batches: Sequence[Minibatch], observed: float) -> dict[str, Tensor]:
        """Add up the gradients of all minibatches; the terms, averaged over the minibatches of all processes."""
        means: dict[str, Tensor] = {}
        for number, batch in enumerate(batches, start=1):
            waits = self._together is not None and number < len(batches)
            share = self._size * (batch.observed or 0) / observed  # processes average their gradients
            with self._together.no_sync() if self._together and waits else nullcontext():
                terms = self._forward(batch)
                self.scaler.scale(share * torch.stack(list(terms.values())).sum()).backward()
            for name, term in terms.items():
                means[name] = means.get(name, 0.0) + share * term.detach()
        if self._together is not None:
            ranks.all_sum(list(means.values()))
            means = {name: mean / self._size for name, mean in means.items()}
        return means

    def _forward(self, batch: Minibatch) -> dict[str, Tensor]:
        terms = self.method.forward if self._together is None else self._together
        weights = nullcontext() if batch.weights is None else weighted(self.method, batch.weights)
        try:
            with weights, self._autocast:
                return terms(batch.x, batch.y)
        except ValueError as error:
            if len(batch.y) == 1 and str(error).startswith(_BATCH_NORM_OF_ONE):
                raise InvalidInputError(
                    "BatchNorm cannot be trained on a batch of one example: use a batch_size of at least 2."
                ) from error
            raise

    def _find_problem(self, terms: Mapping[str, float], epoch: int) -> bool:
        """Refuse a step that would spoil the parameters; True if the gradient merely overflows in fp16."""
        wrong = [f"{name} term of the loss became {v}" for name, v in terms.items() if not math.isfinite(v)]
        if not wrong and self.scaler.is_enabled() and self.scaler.get_scale() > 1:
            return True
        wrong = wrong or ["gradient of the loss became NaN or infinite"]
        rate = self.optimizer.param_groups[0]["lr"]
        raise NonFiniteLossError(
            f"the {wrong[0]} in epoch {epoch}: lower the learning rate (now {rate:.3g}), or check the data's scale; no "
            "step was made."
        )


def _together(method: Method) -> DistributedDataParallel:
    """The method with gradients that are averaged over processes; it starts as on the first process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of torch 2.13 about an argument that earlier ones need
        return DistributedDataParallel(method, broadcast_buffers=False, find_unused_parameters=True)
