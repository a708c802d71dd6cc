"""Features that fade as a row of a table leaves the training rows."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fsvi.networks.known_rows import KnownRows

_SOFT = 0.5
"""Up to about this distance a row outside of what is known counts little."""


class FadingFeatures(nn.Module):
    """Features of a network that fade as a row leaves the training rows, next to how far it left them.

    Let d be the distances of a row from the training rows (`KnownRows`), e = d |d| / (½ + |d|), which is small just
    outside, and h the network's own features. The features are [h, 1, reach · e] / √(1 + |e|²). On the training
    rows e is zero, up to outliers, and a linear layer on top is one of h with a bias. Far away, h fades and the other
    features point in the direction in which the row left: the mean tends to zero (to a constant if h grows linearly),
    and there is a variance of its own for each distance.

    Without this, a network of ordinary width cannot tell that one column of fifty is out of range.

    Args:
        body: A network from rows to features.
        width: The number of its features.
        known: The distances.
        reach: By what distances are multiplied, so that a last layer whose weights all have about the same variance
            can have a small variance on the data and a large one far away.
    """

    def __init__(self, body: nn.Module, width: int, known: KnownRows, reach: float = 10.0) -> None:
        super().__init__()
        self.body, self.known = body, known
        self.width, self.reach = width, float(reach)

    @property
    def out_features(self) -> int:
        """How many features there are."""
        return self.width + self.known.in_features + 3

    def forward(self, x: Tensor) -> Tensor:
        """Features (n, width + columns + 3)."""
        features = self.body(x)
        distance, fading = fade(self.known(x))
        return torch.cat([features, torch.ones_like(fading), self.reach * distance], 1) * fading

    def extra_repr(self) -> str:
        """What two such modules may differ in besides their parts."""
        return f"width={self.width}, reach={self.reach}"


def fade(distances: Tensor) -> tuple[Tensor, Tensor]:
    """e = d |d| / (½ + |d|) and 1/√(1 + |e|²), (n, 1), of distances d.

    Args:
        distances: Distances from the training rows, (n, any).
    """
    softened = distances * distances.abs() / (_SOFT + distances.abs())
    return softened, torch.rsqrt(1 + softened.square().sum(1, keepdim=True))
