"""The corruptions of CIFAR-10-C, implemented from their published definitions.

D. Hendrycks and T. Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations", ICLR
2019, define 15 kinds and 4 extra ones, each at five severities. The parameters in this module are those for CIFAR-10.
Two kinds are missing: `frost`, which needs photographs of ice, and `spatter`, which is defined by an image library's
routines for edges and distances. Random draws differ from those of the released files, so results on these images
must be labeled as regenerated.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fsvi.errors import InvalidInputError
from fsvi.validation import check_choice
from paper.data.corruptions import blur, digital, noise, weather
from paper.data.dataset import Array

_SEVERITIES: dict[str, tuple[Callable[..., Array], tuple[Any, ...]]] = {
    "gaussian_noise": (noise.gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10)),
    "shot_noise": (noise.shot_noise, (500, 250, 100, 75, 50)),
    "impulse_noise": (noise.impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),
    "defocus_blur": (blur.defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
    "glass_blur": (blur.glass_blur, ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))),
    "motion_blur": (blur.motion_blur, ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))),
    "zoom_blur": (blur.zoom_blur, (1.06, 1.11, 1.16, 1.21, 1.26)),
    "snow": (
        weather.snow,
        (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
    ),
    "fog": (weather.fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))),
    "brightness": (weather.brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "contrast": (digital.contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "elastic_transform": (
        digital.elastic_transform,
        ((0, 0, 2.56), (1.6, 6.4, 2.24), (2.56, 1.92, 1.92), (3.2, 1.28, 1.6), (3.2, 0.96, 0.96)),
    ),
    "pixelate": (digital.pixelate, (0.95, 0.9, 0.85, 0.75, 0.65)),
    "jpeg_compression": (digital.jpeg_compression, (80, 65, 58, 50, 40)),
    "speckle_noise": (noise.speckle_noise, (0.06, 0.1, 0.12, 0.16, 0.2)),
    "gaussian_blur": (blur.gaussian_blur, (0.4, 0.6, 0.7, 0.8, 1)),
    "saturate": (digital.saturate, ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))),
}
CORRUPTIONS = tuple(_SEVERITIES)
_CHUNK = 1000


def corrupt(x: Tensor, kind: str, severity: int, seed: int = 0) -> Tensor:
    """Corrupted copies of CIFAR images.

    Args:
        x: Images (n, 3, 32, 32) uint8.
        kind: One of `CORRUPTIONS`, which has 17 of the original 19 (not `frost` and `spatter`).
        severity: 1 (mildest) to 5.
        seed: The seed of the random draws.

    Returns:
        Images of the same shape, uint8; values are clipped to 0..255 and truncated, as in the released files.
    """
    if x.dtype != torch.uint8 or x.dim() != 4 or x.shape[1:] != (3, 32, 32):
        raise InvalidInputError(
            f"images have type {x.dtype} and shape {tuple(x.shape)}; uint8 (n, 3, 32, 32) is needed."
        )
    change, levels = _SEVERITIES[check_choice("kind", kind, CORRUPTIONS)]
    if severity not in range(1, 6):
        raise InvalidInputError(f"severity={severity!r} must be a whole number from 1 to 5.")
    random = np.random.default_rng(seed)
    chunks = (chunk.permute(0, 2, 3, 1).numpy() / 255 for chunk in x.cpu().split(_CHUNK))
    changed = [_to_bytes(change(chunk, levels[severity - 1], random)) for chunk in chunks]
    return torch.cat([torch.from_numpy(images) for images in changed]).permute(0, 3, 1, 2).contiguous()


def _to_bytes(x: Array) -> Array:
    # Floating-point rounding must not lower a whole number of 255ths to the number below it.
    return np.floor(x.clip(0, 1) * 255 + 1e-6).astype(np.uint8)
