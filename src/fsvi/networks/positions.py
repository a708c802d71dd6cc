"""Points of a network that has outputs at every position of a text or an image."""

from __future__ import annotations

import torch
from torch import Tensor

from fsvi.inputs import Bundle, Inputs

_MASK = "attention_mask"


class Positions:
    """Some positions of the outputs at `inputs`; it counts as many points as it has positions.

    The number of positions is known only when the network is called. All positions, example after example, are then
    divided into as many equal stretches as there are points, and a point is in each.

    Args:
        inputs: Examples.
        places: Where each point is in its stretch, from 0 to below 1.
    """

    def __init__(self, inputs: Inputs, places: Tensor) -> None:
        self.inputs, self.places = inputs, places

    def __len__(self) -> int:
        return len(self.places)

    @property
    def device(self) -> torch.device:
        """Where the inputs are."""
        return self.inputs.device

    def select(self, values: Tensor) -> Tensor:
        """The rows of `values` (examples, positions..., channels) at the positions, (points, channels)."""
        rows = values.flatten(0, -2)
        allowed = self._unmasked(values)
        total = len(rows) if allowed is None else len(allowed)
        ends = torch.arange(len(self) + 1, device=self.places.device) * total // len(self)
        offset = (self.places * ends.diff()).long()
        index = (ends[:-1] + torch.minimum(offset, (ends.diff() - 1).clamp_min(0))).to(rows.device)
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
    return Positions(x, torch.rand(num, device=x.device))
