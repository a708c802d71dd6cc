"""One optimizer step, for `fit` and for training loops of your own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fsvi.errors import InvalidInputError, NonFiniteLossError
from fsvi.likelihoods import weighted
from fsvi.methods.base import Method
from fsvi.networks.compiling import INDUCTOR, compile_module, is_compilation_used, uncompile_module
from fsvi.networks.dropout import fast_dropout, plain_dropouts
from fsvi.networks.parameters import batch_norms
from fsvi.validation import check_choice, check_positive

Batch = tuple[Any, Tensor, Tensor | None]
"""Inputs, targets and the examples' weights; None weighs all examples equally."""

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}
_BATCH_NORM_OF_ONE = "Expected more than 1 value per channel"
_FIRST_SCALE, _STEPS_TO_GROW = 2.0**16, 2_000


def take_step(
    method: Method,
    optimizer: Optimizer,
    x: Any,
    y: Tensor,
    epoch: int = 1,
    *,
    clip_norm: float | None = None,
) -> dict[str, float]:
    """Make one optimizer step on a minibatch; after an error, the method is as it was before.

    This is the step of `fit`, for a training loop of your own. The loop's other duties, in order: call
    `method.begin(x, num_data)` and `method.fit_prior(x, y)` with training examples, make an optimizer of
    `method.parameter_groups(lr)`, switch to `method.train()`, take steps on batches that `method.check_batch` has
    checked, call `method.after_epoch(batches)` after each epoch, and `method.finish(batches)` and `method.eval()` at
    the end. `batches` is a function that goes through the training data once more. `Stepper` has more options.

    Args:
        method: A method in training mode, after `method.begin`.
        optimizer: The optimizer of its parameters.
        x: Inputs, validated by `method.check_batch`.
        y: Their targets.
        epoch: The number of the epoch, for error messages.
        clip_norm: The largest norm of the gradient; larger gradients are scaled down to it. None does not clip.

    Returns:
        The terms of the loss by name.
    """
    return Stepper(method, optimizer, clip_norm=clip_norm)([(x, y, None)], epoch)


class Stepper:
    """Makes optimizer steps: backward passes over one or more minibatches, a check, clipping, and the update.

    The program waits for the device once per step, when it reads the terms of the loss together with the check of
    the gradient.

    Args:
        method: A method in training mode, after `method.begin`; its layers must not be replaced afterwards.
        optimizer: The optimizer of its parameters.
        clip_norm: The largest norm of the gradient; larger gradients are scaled down to it. The members of an ensemble
            are clipped one by one. None does not clip.
        precision: "bf16" or "fp16" computes the network in that type where torch considers it safe (autocast);
            parameters, divergences and updates keep their own. None computes everything in the network's type.
            "fp16" multiplies the loss by a factor that adapts itself, and skips a step whose gradient overflows.
        compile: Whether torch.compile compiles the network's passes; see `fit`.
        after_backward: A function that is called after the backward passes and before the check, for example to
            average gradients over processes. It is given the terms and the number of examples, and returns those of
            all processes.
    """

    def __init__(
        self,
        method: Method,
        optimizer: Optimizer,
        *,
        clip_norm: float | None = None,
        precision: str | None = None,
        compile: bool | str = False,
        after_backward: Callable[[dict[str, Tensor], int], tuple[dict[str, Tensor], int]] | None = None,
    ) -> None:
        self.method, self.optimizer = method, optimizer
        self.clip_norm = None if clip_norm is None else check_positive("clip_norm", clip_norm)
        self.precision = None if precision is None else check_choice("precision", precision, PRECISIONS)
        self.after_backward = after_backward
        self.compile = check_compile(method, compile)
        self._is_first = True
        self._norms = batch_norms(method)
        self._dropouts = plain_dropouts(method) if self.compile is None else []
        for learner in method.learners():
            if self.compile is None:
                uncompile_module(learner.net)  # what a run that ended early may have left
            else:
                compile_module(learner.net, self.compile)
        self.examples = 0
        """the number of examples in the last step"""
        self._scale = LossScale() if precision == "fp16" else None

    def __call__(self, batches: Sequence[Batch], epoch: int = 1) -> dict[str, float]:
        """One step on one or more minibatches, which count by their numbers of examples.

        Args:
            batches: The minibatches: inputs and targets, validated by `method.check_batch`, and weights or None.
            epoch: The number of the epoch, for error messages.

        Returns:
            The terms of the loss by name, averaged over the minibatches.
        """
        self.optimizer.zero_grad(set_to_none=True)
        with _restored_on_error(self._norms):
            terms = self._backward(batches)
            self._check_compiled()
            self.examples = sum(len(y) for _, y, _ in batches)
            if self.after_backward is not None:
                terms, self.examples = self.after_backward(terms, self.examples)
            gradients = self._gradients()
            values, norms = _read(terms, [self._check(group) for group in gradients])
            overflows = self._find_problem(values, norms, epoch)
        if overflows:
            return values
        self._rescale(gradients, norms)
        self.optimizer.step()
        self.method.after_step()
        return values

    def state(self) -> dict[str, Any]:
        """What a checkpoint must keep."""
        return {} if self._scale is None else {"scale": self._scale.value, "good_steps": self._scale.good_steps}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        if self._scale is not None:
            self._scale.value, self._scale.good_steps = state["scale"], state["good_steps"]

    def _backward(self, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """Add up the gradients; the terms, averaged over the minibatches."""
        total = sum(len(y) for _, y, _ in batches)
        means: dict[str, Tensor] = {}
        for x, y, weights in batches:
            share = len(y) / total
            with weighted(self.method, weights):
                terms = self._backward_one(x, y, share)
            for name, term in terms.items():
                value = term.detach() if len(batches) == 1 else share * term.detach()
                means[name] = means[name] + value if name in means else value
        return means

    def _check_compiled(self) -> None:
        """Refuse compilation that had no effect on the first step."""
        if self.compile is None or not self._is_first:
            return
        self._is_first = False
        if not any(is_compilation_used(learner.net) for learner in self.method.learners()):
            raise InvalidInputError(
                f"compile={self.compile!r} has no effect on this {type(self.method).__name__}, because torch.compile "
                "follows neither hooks of layers nor passes that torch.func joins: leave compile out."
            )

    def _backward_one(self, x: Any, y: Tensor, share: float) -> dict[str, Tensor]:
        scale = share if self._scale is None else share * self._scale.value
        try:
            with self._autocast(), fast_dropout(self._dropouts):
                return self.method.backward(x, y) if scale == 1 else self.method.backward(x, y, scale)
        except ValueError as error:
            if len(y) == 1 and str(error).startswith(_BATCH_NORM_OF_ONE):
                raise InvalidInputError(
                    "BatchNorm cannot be trained on a batch of one example: use a batch_size of at least 2."
                ) from error
            raise

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.precision is None:
            return nullcontext()
        return torch.autocast(self.method.device.type, dtype=PRECISIONS[self.precision])

    def _gradients(self) -> list[list[Tensor]]:
        """All gradients, in one group or, to be clipped, in a group per member of an ensemble."""
        if self.clip_norm is None:
            return [[p.grad for g in self.optimizer.param_groups for p in g["params"] if p.grad is not None]]
        return [[p.grad for p in learner.parameters() if p.grad is not None] for learner in self.method.learners()]

    def _check(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Numbers that are finite only if the gradients are: their norm if they are to be clipped, or their sums."""
        if not gradients:
            return []
        if self.clip_norm is None:
            return [gradient.sum() for gradient in gradients]
        return [torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients]))]

    def _find_problem(self, terms: Mapping[str, float], checks: Sequence[float], epoch: int) -> bool:
        """Refuse a step that would spoil the parameters; whether the gradient merely overflows in fp16."""
        problem = None
        for name, value in terms.items():
            if not math.isfinite(value):
                problem = f"the {name} term of the loss became {value}"
        finite = all(map(math.isfinite, checks))
        if problem is None and not finite:
            problem = "the gradient of the loss became NaN or infinite"
            if self._scale is not None and self._scale.can_fall:
                self._scale.overflow()
                return True
        if problem is not None:
            rate = self.optimizer.param_groups[0]["lr"]
            raise NonFiniteLossError(
                f"{problem} in epoch {epoch}: lower the learning rate (now {rate:.3g}), or check the data's scale; no "
                "step was made."
            )
        return False

    def _rescale(self, gradients: Sequence[list[Tensor]], norms: Sequence[float]) -> None:
        """Undo the loss scale, and clip; the norms are known, so the device is not asked again."""
        scale = 1.0 if self._scale is None else self._scale.value
        for group, norm in zip(gradients, norms, strict=False):
            clips = self.clip_norm is not None and norm > self.clip_norm * scale
            factor = self.clip_norm / norm if clips and self.clip_norm is not None else 1 / scale
            if group and factor != 1:
                torch._foreach_mul_(group, factor)
        if self._scale is not None:
            self._scale.success()


def check_compile(method: Method, compile: bool | str) -> str | None:
    """The backend of torch.compile; None without compilation."""
    if compile is False:
        return None
    if not isinstance(compile, (bool, str)):
        raise InvalidInputError(f"compile={compile!r} must be True or False, or the name of a backend.")
    for learner in method.learners():
        if not learner.can_compile:
            raise InvalidInputError(
                f"compile={compile!r} cannot be used with {type(learner).__name__}, because torch.compile cannot "
                "follow how it calls the network: leave compile out."
            )
    return INDUCTOR if compile is True else compile


class LossScale:
    """The factor on an fp16 loss, without which small gradients would become zero.

    It is halved when gradients overflow, and doubled after 2,000 steps without an overflow.
    """

    def __init__(self) -> None:
        self.value, self.good_steps = _FIRST_SCALE, 0

    @property
    def can_fall(self) -> bool:
        """Whether a smaller factor may help; if gradients overflow without any, something else is wrong."""
        return self.value > 1

    def overflow(self) -> None:
        """Gradients overflowed."""
        self.value, self.good_steps = self.value / 2, 0

    def success(self) -> None:
        """A step was made."""
        self.good_steps += 1
        if self.good_steps == _STEPS_TO_GROW:
            self.value, self.good_steps = 2 * self.value, 0


def _read(terms: Mapping[str, Tensor], checks: Sequence[Sequence[Tensor]]) -> tuple[dict[str, float], list[float]]:
    """The terms and the sum of each group's checks, in one transfer from the device."""
    values: list[float] = torch.stack([*terms.values(), *(check for group in checks for check in group)]).tolist()
    rest = iter(values[len(terms) :])
    return dict(zip(terms, values, strict=False)), [sum(next(rest) for _ in group) for group in checks]


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
