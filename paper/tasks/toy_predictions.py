"""Predictions of the toy tasks that figures draw, as arrays and as the lists of a result file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fsvi.likelihoods import Predictive
from fsvi.methods import Method

Array: TypeAlias = NDArray[np.float32]

_DRAWS = 100
_BATCH = 8192
_DECIMALS = 4


@dataclass(frozen=True)
class Surface:
    """Predictions of class 1 on a square grid, and the training points.

    Attributes:
        x: Training inputs, (n, 2).
        y: Their labels, (n,).
        axis: Coordinates of the grid, the same for both inputs, (g,).
        mean: Probability of class 1, (g, g); rows are the second input.
        variance: Variance of that probability over draws of the function, (g, g).
    """

    x: Array
    y: Array
    axis: Array
    mean: Array
    variance: Array


@dataclass(frozen=True)
class Band:
    """The prediction of a regression along a line, in raw units; every array has shape (n,).

    Attributes:
        x: Inputs.
        mean: Predictive mean.
        function_std: Standard deviation of the function.
        target_std: Standard deviation of an observation, including noise.
    """

    x: Array
    mean: Array
    function_std: Array
    target_std: Array


@dataclass(frozen=True)
class Curve:
    """The data of a regression, and its predictions close to the data and far around them, in raw units."""

    x: Array
    y: Array
    zoomed: Band
    wide: Band


Picture: TypeAlias = Surface | Curve


def predict(method: Method, x: Tensor) -> Predictive:
    """The predictive distribution with the number of draws that all toy tasks use.

    Args:
        method: The trained method.
        x: Inputs.
    """
    return method.predict(x, num_samples=_DRAWS, batch_size=_BATCH)


def mean(values: Tensor) -> float:
    """The mean of numbers or truth values."""
    return float(values.float().mean())


def array(values: Tensor) -> Array:
    """A tensor as an array to draw."""
    return values.detach().to(torch.float32).numpy()


# Result files -------------------------------------------------------------------------------------------------------


def as_lists(picture: Picture) -> dict[str, Any]:
    """The picture as a result file keeps it, rounded."""
    return {"kind": type(picture).__name__.lower(), **_rounded(asdict(picture))}


def from_lists(values: Mapping[str, Any]) -> Picture:
    """The picture from the lists of a result file; a ValueError if they do not fit together."""
    parts = {name: value for name, value in values.items() if name != "kind"}
    if values["kind"] == "surface":
        surface = Surface(**_arrays(parts))
        _check(surface)
        return surface
    zoomed, wide = (Band(**_arrays(parts.pop(name))) for name in ("zoomed", "wide"))
    curve = Curve(**_arrays(parts), zoomed=zoomed, wide=wide)
    for part in (curve, zoomed, wide):
        _check(part)
    return curve


def _rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _rounded(value) if isinstance(value, dict) else np.asarray(value, np.float64).round(_DECIMALS).tolist()
        for name, value in values.items()
    }


def _arrays(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(value, dtype=np.float32) for name, value in values.items()}


def _check(part: Picture | Band) -> None:
    """Check that all numbers are finite and all shapes agree."""
    arrays = {name: value for name, value in vars(part).items() if isinstance(value, np.ndarray)}
    n = len(part.x)
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(arrays, (n,))
    if isinstance(part, Surface):
        g = len(part.axis)
        shapes |= {"x": (n, 2), "axis": (g,), "mean": (g, g), "variance": (g, g)}
    finite = all(bool(np.isfinite(each).all()) and each.size for each in arrays.values())
    if not finite or any(each.shape != shapes[name] for name, each in arrays.items()):
        raise ValueError("the parts of the picture do not fit together")
