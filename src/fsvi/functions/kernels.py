"""Kernels of Gaussian processes: the covariance of function values at any two inputs.

Kernels add and multiply: `RBF(lengthscale=2.0) + Linear(columns=[0])`, `RBF() * Periodic(period=12.0)`. Their
hyperparameters are positive numbers in one vector, which `fsvi.priors.GaussianProcess(kernel, learn=True)` fits to the
targets of a regression.

Examples:
    >>> kernel = fsvi.kernels.RBF(lengthscale=2.0) + fsvi.kernels.Linear()
    >>> kernel(torch.linspace(-1, 1, 3)[:, None]).shape  # the covariance of function values at three inputs
    torch.Size([3, 3])
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, ClassVar

import torch
from torch import Tensor

from fsvi.errors import InvalidInputError
from fsvi.networks.devices import in_float64
from fsvi.networks.distance import median_distance
from fsvi.serialization import Configurable
from fsvi.validation import check_count, check_positive, check_type

PerColumn = float | Sequence[float] | None
"""One number for all columns, one for each, or None: found from the training inputs."""

_LOOKED_AT = 300
"""How many inputs a median distance is found from."""


class Kernel(Configurable, ABC):
    """A positive semi-definite function k(x, x′) of two inputs, which are flattened first."""

    @abstractmethod
    def __call__(self, x: Tensor, values: Tensor | None = None) -> Tensor:
        """k at all pairs of the inputs `x`, in float64, (n, n).

        Args:
            x: Inputs, (n, ...).
            values: The hyperparameters; None takes the kernel's own, those of `start`.
        """

    @abstractmethod
    def start(self, x: Tensor) -> Tensor:
        """The hyperparameters that were given; a missing lengthscale is the median distance between the inputs `x`."""

    @abstractmethod
    def kinds(self, x: Tensor) -> list[str]:
        """What each hyperparameter is: "lengthscale", "variance" or "period"."""

    def __add__(self, other: Kernel) -> Sum:
        """k₁(x, x′) + k₂(x, x′)"""
        return Sum([self, other])

    def __mul__(self, other: Kernel) -> Product:
        """k₁(x, x′) · k₂(x, x′)"""
        return Product([self, other])


class _ColumnKernel(Kernel):
    """A kernel with a hyperparameter that may differ between columns, followed by others.

    In a table, every column has its own; inputs of other shapes share one unless several were given.
    """

    first: ClassVar[str] = "lengthscale"
    others: ClassVar[dict[str, str]] = {"variance": "variance"}
    """The names and kinds of the others."""

    def __init__(self, columns: Sequence[int] | None) -> None:
        self.columns = None if columns is None else [check_count("columns", c, least=0) for c in columns]
        if self.columns is not None and (not self.columns or len(set(self.columns)) < len(self.columns)):
            raise InvalidInputError(f"columns={self.columns} must name at least one column, and each only once.")

    def __call__(self, x: Tensor, values: Tensor | None = None) -> Tensor:
        """k at all pairs of `x`."""
        values = self.start(x) if values is None else values
        count = len(values) - len(self.others)
        return self.covariance(self._rows(x), values[:count], *values[count:])

    def start(self, x: Tensor) -> Tensor:
        """The hyperparameters, one for each column where they may differ."""
        rows, given = self._rows(x), getattr(self, self.first)
        if isinstance(given, list) and len(given) != rows.shape[1]:
            raise InvalidInputError(
                f"{type(self).__name__} has {len(given)} values of {self.first} for {rows.shape[1]} columns: give one, "
                "or one for each column."
            )
        found = median_distance(spread(rows)) if given is None else given
        first = torch.tensor(found, dtype=rows.dtype).to(rows)
        others = torch.tensor([getattr(self, name) for name in self.others], dtype=rows.dtype).to(rows)
        return torch.cat([first.reshape(-1).expand(len(self.kinds(x)) - len(others)), others])

    def kinds(self, x: Tensor) -> list[str]:
        """What each hyperparameter is."""
        given = getattr(self, self.first)
        count = len(given) if isinstance(given, list) else self._rows(x).shape[1] if x.dim() == 2 else 1
        return [self.first] * count + list(self.others.values())

    @abstractmethod
    def covariance(self, rows: Tensor, first: Tensor, *others: Tensor) -> Tensor:
        """k at all pairs of `rows`, which have the kernel's own columns, with these hyperparameters."""

    def _rows(self, x: Tensor) -> Tensor:
        rows = in_float64(x.flatten(1))
        if self.columns is not None and max(self.columns) >= rows.shape[1]:
            raise InvalidInputError(
                f"{type(self).__name__} is for column {max(self.columns)}, but the inputs have columns "
                f"0..{rows.shape[1] - 1}."
            )
        return rows if self.columns is None else rows[:, self.columns]


class RBF(_ColumnKernel):
    """variance · exp(−½ r²) with r² = Σᵢ (xᵢ − x′ᵢ)²/lengthscaleᵢ²: very smooth functions.

    Args:
        lengthscale: One number for all columns, or one for each. None takes the median distance between training
            inputs.
        variance: The variance of every function value.
        columns: The columns that the kernel looks at; None means all.
    """

    def __init__(
        self, lengthscale: PerColumn = None, variance: float = 1.0, columns: Sequence[int] | None = None
    ) -> None:
        super().__init__(columns)
        self.lengthscale = _check_per_column("lengthscale", lengthscale)
        self.variance = check_positive("variance", variance)

    def covariance(self, rows: Tensor, first: Tensor, *others: Tensor) -> Tensor:
        """k at all pairs of `rows`."""
        rows = (rows - rows.mean(0)) / first  # far from zero, distances would drown in rounding
        return others[0] * self.profile(torch.cdist(rows, rows))

    def profile(self, r: Tensor) -> Tensor:
        """The correlation at a distance of r lengthscales."""
        return (-0.5 * r.square()).exp()


class Matern(RBF):
    """Functions that are less smooth than `RBF`'s: with r as there, variance times

        smoothness ½:  exp(−r),  continuous functions;
        smoothness 1½: (1 + √3 r) exp(−√3 r),  once differentiable;
        smoothness 2½: (1 + √5 r + 5r²/3) exp(−√5 r),  twice differentiable.

    Args:
        smoothness: 0.5, 1.5 or 2.5.
        lengthscale: As for `RBF`.
        variance: As for `RBF`.
        columns: As for `RBF`.
    """

    def __init__(
        self,
        smoothness: float = 2.5,
        lengthscale: PerColumn = None,
        variance: float = 1.0,
        columns: Sequence[int] | None = None,
    ) -> None:
        super().__init__(lengthscale, variance, columns)
        if smoothness not in _MATERN:
            raise InvalidInputError(f"smoothness={smoothness!r} must be 0.5, 1.5 or 2.5.")
        self.smoothness = smoothness

    def profile(self, r: Tensor) -> Tensor:
        """The correlation at a distance of r lengthscales."""
        s = math.sqrt(2 * self.smoothness) * r
        return _MATERN[self.smoothness](s) * (-s).exp()


_MATERN: dict[float, Callable[[Tensor], Tensor]] = {
    0.5: torch.ones_like,
    1.5: lambda s: 1 + s,
    2.5: lambda s: 1 + s + s.square() / 3,
}
"""The polynomial in s = √(2·smoothness) r before exp(−s)."""


class Periodic(RBF):
    """variance · exp(−2 Σᵢ sin²(π (xᵢ − x′ᵢ)/period)/lengthscaleᵢ²): functions that repeat themselves.

    Args:
        period: After which distance the functions repeat, the same for all columns.
        lengthscale: One number for all columns, or one for each; how fast functions change within a period.
        variance: The variance of every function value.
        columns: The columns that the kernel looks at; None means all.
    """

    others: ClassVar = {"variance": "variance", "period": "period"}

    def __init__(
        self,
        period: float = 1.0,
        lengthscale: float | Sequence[float] = 1.0,
        variance: float = 1.0,
        columns: Sequence[int] | None = None,
    ) -> None:
        super().__init__(lengthscale, variance, columns)
        self.period = check_positive("period", period)

    def covariance(self, rows: Tensor, first: Tensor, *others: Tensor) -> Tensor:
        """The RBF kernel of points on circles, one per column: their squared distance is 4 sin²(π (x − x′)/period)."""
        variance, period = others
        angle = 2 * math.pi * (rows - rows.mean(0)) / period
        circle = torch.cat([angle.cos() / first, angle.sin() / first], dim=1)
        return super().covariance(circle, torch.ones_like(variance), variance)


class Linear(_ColumnKernel):
    """bias + Σᵢ varianceᵢ xᵢ x′ᵢ: straight lines whose slopes have these variances, and whose value at 0 has `bias`.

    Args:
        variance: The variance of the slopes, one number for all columns, or one for each.
        bias: The variance of the value at 0.
        columns: The columns that the kernel looks at; None means all.
    """

    first = "variance"
    others: ClassVar = {"bias": "variance"}

    def __init__(
        self,
        variance: float | Sequence[float] = 1.0,
        bias: float = 1.0,
        columns: Sequence[int] | None = None,
    ) -> None:
        super().__init__(columns)
        self.variance = _check_per_column("variance", variance)
        self.bias = check_positive("bias", bias)

    def covariance(self, rows: Tensor, first: Tensor, *others: Tensor) -> Tensor:
        """k at all pairs of `rows`."""
        return (rows * first) @ rows.T + others[0]


class _Combination(Kernel):
    """Several kernels as one; their hyperparameters follow each other."""

    combine: ClassVar[Callable[[Tensor, Tensor], Tensor]]

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        self.kernels: list[Kernel] = []
        for kernel in kernels:
            check_type("a part of the kernel", kernel, Kernel, "a kernel such as fsvi.kernels.RBF()")
            self.kernels.extend(kernel.kernels if isinstance(kernel, type(self)) else [kernel])
        if not self.kernels:
            raise InvalidInputError(f"{type(self).__name__} needs at least one kernel.")

    def __call__(self, x: Tensor, values: Tensor | None = None) -> Tensor:
        """The parts' matrices, combined."""
        values = self.start(x) if values is None else values
        parts = values.split([len(kernel.kinds(x)) for kernel in self.kernels])
        return reduce(type(self).combine, (kernel(x, own) for kernel, own in zip(self.kernels, parts, strict=True)))

    def start(self, x: Tensor) -> Tensor:
        """The hyperparameters of all parts."""
        return torch.cat([kernel.start(x) for kernel in self.kernels])

    def kinds(self, x: Tensor) -> list[str]:
        """What the hyperparameters of all parts are."""
        return [kind for kernel in self.kernels for kind in kernel.kinds(x)]


class Sum(_Combination):
    """Σ k(x, x′): sums of independent functions. Write `first + second`.

    Args:
        kernels: The terms.
    """

    combine = torch.add


class Product(_Combination):
    """Π k(x, x′): functions alike where all factors say so, such as a periodic one that fades. Write `first * second`.

    Args:
        kernels: The factors.
    """

    combine = torch.mul


def spread(values: Any, most: int = _LOOKED_AT) -> Any:
    """At most this many of them, spread evenly."""
    return values[:: math.ceil(len(values) / most)]


def _check_per_column(name: str, value: PerColumn) -> float | list[float] | None:
    if isinstance(value, Sequence) and value:
        return [check_positive(name, each) for each in value]
    return None if value is None else check_positive(name, value)  # type: ignore[arg-type]
