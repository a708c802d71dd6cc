"""A context for tables: training rows, moved away from the data in the ways in which tables leave it."""

from __future__ import annotations

import torch
from torch import Tensor

from fsvi.errors import InvalidInputError
from fsvi.functions.contexts.general import Context
from fsvi.inputs import describe_inputs, example_shape
from fsvi.validation import check_positive

_FEW = 0.25
"""Up to this share of the columns, or one column, a shift is one of few columns."""
_ALONE, _TOGETHER = 0.4, 0.4
"""Shares of the points in which one column moves, and in which all do; in the others, a random subset does."""


class ShiftedRows(Context):
    """Rows of the minibatch with some columns pushed away from the data; the default context of the estimators.

    It covers the ways in which tables leave their training data in practice:

    - one column breaks (40% of the points): a single column moves by `smallest_alone` to `largest` standard deviations;
    - all columns drift (40%), or a random subset of them does (20%): half of the time in the same direction, half of
      the time each in its own, by `smallest` to `largest` standard deviations. Small shifts are more likely than large
      ones. A random subset of at most a quarter of the columns moves as far as a single column.

    Columns with two values (flags, categories) move out of range like others. Columns that are constant in training
    stay as they are, since their scale is unknown. Before `prepare` has seen training rows it takes scales from the
    minibatch.

    Args:
        smallest: The smallest shift of many columns, in standard deviations of each column.
        smallest_alone: The smallest shift of few columns. A column alone must move farther to be outside of the data.
        largest: The largest shift. Beyond, predictions are extrapolated.
    """

    def __init__(self, smallest: float = 3.0, smallest_alone: float = 4.0, largest: float = 10.0) -> None:
        self.smallest = check_positive("smallest", smallest, zero=True)
        self.smallest_alone = check_positive("smallest_alone", smallest_alone, zero=True)
        self.largest = check_positive("largest", largest)
        if largest < max(smallest, smallest_alone):
            raise InvalidInputError(
                f"largest={largest} must not be less than smallest={smallest} and smallest_alone={smallest_alone}."
            )
        self._std: Tensor | None = None

    def prepare(self, x: Tensor) -> None:
        """Learn each column's scale."""
        if not isinstance(x, Tensor) or x.dim() != 2:
            raise InvalidInputError(
                f"ShiftedRows needs a table (rows, columns), not inputs of {describe_inputs(x)}: for images use "
                "fsvi.contexts.Monochrome or Corrupted."
            )
        std = x.std(0, correction=0)
        # Rounding leaves a constant column with a tiny deviation.
        self._std = torch.where(std > 1e-6 * x.abs().amax(0), std, torch.zeros_like(std))

    def sample(self, num: int, batch: Tensor) -> Tensor:
        """Rows of the minibatch, each moved in one of the ways above."""
        if self._std is None or self._std.shape != example_shape(batch):
            self.prepare(batch)
        assert self._std is not None
        std = self._std.to(batch)
        moves = self._chosen_columns(num, std)
        few = moves.sum(1, keepdim=True) <= max(1.0, _FEW * len(std))
        same = torch.rand(num, 1, device=std.device) < 0.5
        signs = torch.randint(2, moves.shape, device=std.device) * 2 - 1
        signs = torch.where(same, signs[:, :1], signs)
        least = torch.where(few, self.smallest_alone, self.smallest)
        sizes = least + (self.largest - least) * torch.rand(num, 1, device=std.device).square()
        rows = batch[torch.randint(len(batch), (num,), device=std.device)]
        return rows + (moves * signs * sizes).to(std) * std

    def _chosen_columns(self, num: int, std: Tensor) -> Tensor:
        """Which columns move in each point, (num, columns)."""
        kind = torch.rand(num, 1, device=std.device)
        share = torch.where(kind < _ALONE + _TOGETHER, 1.0, torch.rand(num, 1, device=std.device))
        moves = torch.rand(num, len(std), device=std.device) < share
        alone = ((std > 0) * torch.rand(num, len(std), device=std.device)).argmax(1, keepdim=True)
        return torch.where(kind < _ALONE, torch.zeros_like(moves).scatter_(1, alone, True), moves)
