"""Classes that are divided among tasks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fsvi.errors import InvalidInputError
from fsvi.likelihoods.categorical import Categorical, CategoricalPredictive

_EXCLUDED = -1e4
"""The logit of a class of another task: its probability is exactly 0, and all logarithms stay finite."""


class MultiHead(Categorical):
    """Integer labels of several tasks, each with outputs of its own: a head of the last layer.

    Only the outputs of the present task compete: the probabilities of all other classes are 0. Labels keep their
    numbers, so that task 1 of `MultiHead([[0, 1], [2, 3]])` has the labels 2 and 3. `fsvi.fit_tasks` sets `task`; to
    predict for an earlier task, set it yourself: `method.likelihood.task = 0`.

    Args:
        heads: The classes of each task, in the order of the tasks. Together they are 0..C−1, each once.
        task: The number of the present task, from 0.

    Examples:
        >>> likelihood = fsvi.MultiHead([[0, 1], [2, 3]])
        >>> likelihood.task = 1
        >>> likelihood.predictive(torch.zeros(1, 1, 4)).mean
        tensor([[0.0000, 0.0000, 0.5000, 0.5000]])
    """

    def __init__(self, heads: Sequence[Sequence[int]], task: int = 0) -> None:
        super().__init__()
        self.heads = _check_heads(heads)
        self.task = task

    @property
    def classes(self) -> list[int]:
        """The classes of the present task."""
        if self.task not in range(len(self.heads)):
            raise InvalidInputError(f"task={self.task!r} must be a whole number from 0 to {len(self.heads) - 1}.")
        return self.heads[self.task]

    def bind(self, num_outputs: int) -> None:
        """Check that there is an output for every class."""
        super().bind(num_outputs)
        num_classes = sum(map(len, self.heads))
        if num_classes != num_outputs:
            raise InvalidInputError(f"the heads have {num_classes} classes, but the network has {num_outputs} outputs.")

    def check_targets(self, y: Tensor, num_outputs: int) -> Tensor:
        """Labels as int64 (n,), all of them of the present task."""
        if y.dim() == 2 and y.is_floating_point() and y.shape[1] > 1:
            raise InvalidInputError(f"targets have shape {tuple(y.shape)}: MultiHead needs a label per example.")
        y = super().check_targets(y, num_outputs)
        unknown = y[~torch.isin(y, torch.tensor(self.classes, device=y.device))]
        if len(unknown):
            classes = ", ".join(map(str, self.classes))
            raise InvalidInputError(f"label {int(unknown[0])} is not a class of task {self.task}, which has {classes}.")
        return y

    def nll(self, f: Tensor, y: Tensor) -> Tensor:
        """Mean cross-entropy among the classes of the present task."""
        return super().nll(self._restricted(f), y)

    def predictive(self, f: Tensor) -> CategoricalPredictive:
        """Class probabilities averaged over draws."""
        return super().predictive(self._restricted(f))

    def fisher_root(self, f: Tensor, y: Tensor | None = None) -> Tensor:
        """As for `Categorical`; outputs of other tasks have no curvature."""
        return super().fisher_root(self._restricted(f), y)

    def _restricted(self, f: Tensor) -> Tensor:
        """The outputs, with those of other tasks excluded."""
        excluded = torch.ones(f.shape[-1], dtype=torch.bool, device=f.device)
        excluded[self.classes] = False
        return f.masked_fill(excluded, _EXCLUDED)


def _check_heads(heads: Sequence[Sequence[int]]) -> list[list[int]]:
    listed = [[int(label) for label in head] for head in heads]
    together = sorted(label for head in listed for label in head)
    if not all(listed) or not together or together != list(range(len(together))):
        raise InvalidInputError(
            f"heads={listed} must list the classes 0, 1, 2, ... of all tasks, each class once, and at least one a task."
        )
    return listed
