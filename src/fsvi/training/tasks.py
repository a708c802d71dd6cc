"""Train a method on one task after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from fsvi.errors import InvalidInputError
from fsvi.likelihoods import MultiHead
from fsvi.methods.base import Method
from fsvi.networks.devices import forked_random
from fsvi.training.batches import as_batches
from fsvi.training.fit import fit
from fsvi.training.history import History
from fsvi.validation import check_type

_BATCH = 128


def fit_tasks(
    method: Method,
    tasks: Sequence[Any],
    *,
    first: int = 0,
    seed: int = 0,
    checkpoint: str | PathLike[str] | None = None,
    after_task: Callable[[Method, int], object] | None = None,
    **settings: Any,
) -> list[History]:
    """Train a method on a sequence of tasks, of which each is seen once.

    `fsvi.SFSVI` remembers earlier tasks. Any other method is fine-tuned: it starts from what it has learned, and
    forgets. All tasks are checked before the first is learned. With `fsvi.MultiHead`, task k has head k.

    Args:
        method: The method to train.
        tasks: The training data of each task, in any form that `fit` takes.
        first: The number of the first of these tasks, from 0, if earlier ones have been learned already.
        seed: The seed of each task's training, as for `fit`.
        checkpoint: A folder for checkpoints, with one folder per task. With `resume=True`, tasks that are complete
            are read from it, and an interrupted one continues with the same bits.
        after_task: A function of the method and the task's number, called when a task has been learned or read.
        settings: Other arguments of `fit`, the same for all tasks.

    Returns:
        The history of each task.

    Examples:
        >>> x, y = fsvi.data.two_moons(100, noise=0.1, seed=0)
        >>> net = fsvi.networks.mlp(2, (20,), 2)
        >>> method = fsvi.MAP(net, fsvi.Categorical())
        >>> histories = fsvi.fit_tasks(method, [(x[:50], y[:50]), (x[50:], y[50:])], epochs=5, seed=0)
        >>> len(histories)
        2
    """
    check_type("method", method, Method, "a method such as fsvi.SFSVI(net, likelihood=..., context=...)")
    _check_tasks(method, tasks, first, settings)
    histories = []
    for number, data in enumerate(tasks, first):
        start_task(method, number)
        folder = None if checkpoint is None else Path(checkpoint) / f"task-{number}"
        histories.append(fit(method, data, seed=seed, checkpoint=folder, **settings))
        if after_task is not None:
            after_task(method, number)
        with forked_random(method.device):
            for learner in method.learners():
                end_task: Any = getattr(learner, "end_task", None)
                if end_task is not None:
                    end_task(_examples(method, data, settings), seed)
    return histories


def start_task(method: Method, number: int) -> None:
    """Let every likelihood with several heads use the head of this task, for training or for prediction."""
    for part in method.modules():
        if isinstance(part, MultiHead):
            part.task = number


def _examples(method: Method, data: Any, settings: Any) -> Any:
    unpack, num_data = settings.get("unpack"), settings.get("num_data")
    return as_batches(method, data, settings.get("batch_size", _BATCH), num_data, unpack).examples().x


def _check_tasks(method: Method, tasks: Sequence[Any], first: int, settings: Any) -> None:
    """Refuse tasks that do not fit the network or its heads before the first one is learned."""
    if not isinstance(tasks, Sequence) or not tasks:
        raise InvalidInputError("tasks must be a list with the training data of each task, at least of one.")
    for number, data in enumerate(tasks, first):
        try:
            start_task(method, number)
            with forked_random(method.device):
                _examples(method, data, settings)
        except InvalidInputError as error:
            raise type(error)(f"task {number} cannot be learned: {error}") from error
