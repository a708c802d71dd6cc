"""The context of those who name none."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fsvi.functions.contexts.general import Context, Corrupted, Mixture, Uniform
from fsvi.functions.contexts.shifted_rows import ShiftedRows
from fsvi.functions.contexts.tokens import ReplacedTokens

_IMAGES, _ROWS = 4, 2
"""dimensions of a batch"""


class Suitable(Context):
    """What suits the training inputs, unless you know better: the default of `FSVI.from_trained`.

    For rows of numbers `ShiftedRows()`; for images half corrupted ones, half noise; for texts `ReplacedTokens()`; for
    other numbers a box that is twice as wide as the data.

    Examples:
        >>> fsvi.contexts.Suitable().sample(3, torch.randn(10, 2)).shape
        torch.Size([3, 2])
    """

    _chosen: Context | None = None

    def prepare(self, x: Any) -> None:
        """Choose, and show the inputs to what is chosen."""
        box = Uniform(widen=0.5)
        if not isinstance(x, Tensor) or not x.is_floating_point():
            self._chosen = ReplacedTokens()
        elif x.dim() == _ROWS:
            self._chosen = ShiftedRows()
        else:
            self._chosen = Mixture([Corrupted(), box], [0.5, 0.5]) if x.dim() == _IMAGES else box
        self._chosen.prepare(x)

    def sample(self, num: int, batch: Any) -> Any:
        """Points of what was chosen."""
        if self._chosen is None:
            self.prepare(batch)
        assert self._chosen is not None
        return self._chosen.sample(num, batch)
