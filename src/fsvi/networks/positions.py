"""Points of a network that has outputs at every position of a text or an image."""

from __future__ import annotations

import torch
from torch import Tensor

from fsvi.inputs import Bundle, Inputs

_MASK = "attention_mask"


class Positions:
    """Some positions of the outputs at `inputs`; it counts as many points as it has positions.

    The number of positions is known only when the network is called. So a position is kept as a fraction of the way
    from the first position of the first example to the last of the last one.

    Args:
        inputs: Examples.
        fractions: Increasing numbers in [0, 1), one per point.
    """

    def __init__(self, inputs: Inputs, fractions: Tensor) -> None:
        self.inputs, self.fractions = inputs, fractions

    def __len__(self) -> int:
        return len(self.fractions)

    @property
    def device(self) -> torch.device:
        """Where the inputs are."""
        return self.inputs.device

    def select(self, values: Tensor) -> Tensor:
        """The rows of `values` (examples, positions..., channels) at the positions, (points, channels)."""
        rows = values.flatten(0, -2)
        allowed = self._unmasked(values)
        total = len(rows) if allowed is None else len(allowed)
        index = (self.fractions * total).long().clamp_max(total - 1).to(rows.device)
        return rows[index if allowed is None else allowed[index]]

    def _unmasked(self, values: Tensor) -> Tensor | None:
        """The positions that are not padding, if a mask of the same shape says so."""
        tree = self.inputs.tree if isinstance(self.inputs, Bundle) else None
        mask = tree.get(_MASK) if isinstance(tree, dict) else None
        if not isinstance(mask, Tensor) or mask.shape != values.shape[:-1] or not bool((mask != 0).any()):
            return None
        return (mask != 0).flatten().nonzero()[:, 0]


def choose_positions(x: Inputs, num: int) -> Positions:
    """`num` random positions of the outputs at `x`, spread evenly over examples, all different if there are enough."""
    return Positions(x, (torch.arange(num) + torch.rand(num)).double() / num)
