"""Kernels of Gaussian processes: the covariance of function values at any two inputs.

Kernels add and multiply: `RBF(lengthscale=2.0) + Linear(columns=[0])`, `RBF() * Periodic(period=12.0)`. Their
hyperparameters are positive numbers in one vector, which `fsvi.priors.GaussianProcess(kernel=..., learn=True)` fits to
the targets of a regression.

Examples:
    >>> kernel = fsvi.kernels.RBF(lengthscale=2.0) + fsvi.kernels.Linear()
    >>> kernel(torch.linspace(-1, 1, 3)[:, None]).shape  # the covariance of function values at three inputs
    torch.Size([3, 3])
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any, ClassVar

import torch
from torch import Tensor

from fsvi.errors import InvalidInputError
from fsvi.networks.devices import has_float64, in_float64
from fsvi.serialization import Configurable
from fsvi.validation import check_count, check_positive, check_type

PerColumn = float | Sequence[float] | None
"""One number for all columns, one for each, or None: found from the training inputs."""

_LOOKED_AT = 300
"""How many inputs a median distance is found from."""


class Kernel(Configurable, ABC):
    """A positive semi-definite function k(x, x′) of two inputs, which are flattened first."""

    def __call__(self, x: Tensor, values: Tensor | None = None) -> Tensor:
        """k at all pairs of the inputs `x`, in float64, (n, n).

        Args:
            x: Inputs, (n, ...).
            values: The hyperparameters; None takes the kernel's own, those of `start`.
        """
        rows = in_float64(x.flatten(1))
        self.check(rows.shape[1])
        return self.matrix(rows, self.start(rows) if values is None else values)

    def __add__(self, other: Kernel) -> Sum:
        """k₁(x, x′) + k₂(x, x′)"""
        return Sum([self, other])

    def __mul__(self, other: Kernel) -> Product:
        """k₁(x, x′) · k₂(x, x′)"""
        return Product([self, other])

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether a lengthscale is to be found from the training inputs."""

    @abstractmethod
    def check(self, num_columns: int) -> None:
        """Refuse inputs whose columns do not fit."""

    @abstractmethod
    def size(self, num_columns: int | None) -> int:
        """How many hyperparameters there are: the fewest, or those for inputs of `num_columns` with one per column."""

    @abstractmethod
    def start(self, rows: Tensor | None, each_column: bool = False) -> Tensor:
        """The hyperparameters that were given.

        Args:
            rows: Inputs (n, columns), from which missing lengthscales are found; without any, these are 1.
            each_column: Whether every column gets its own lengthscale.
        """

    @abstractmethod
    def kinds(self, num_columns: int, count: int) -> list[str]:
        """What each of `count` hyperparameters is: "lengthscale", "variance" or "period"."""

    @abstractmethod
    def matrix(self, rows: Tensor, values: Tensor) -> Tensor:
        """k at all pairs of `rows` (n, columns), in float64, with these hyperparameters, (n, n)."""


class _ColumnKernel(Kernel):
    """A kernel with a hyperparameter that may differ between columns, followed by others."""

    first: ClassVar[str] = "lengthscale"
    others: ClassVar[tuple[str, ...]] = ("variance",)

    def __init__(self, columns: Sequence[int] | None) -> None:
        self.columns = None if columns is None else [check_count("columns", c, least=0) for c in columns]
        if self.columns is not None and (not self.columns or len(set(self.columns)) < len(self.columns)):
            raise InvalidInputError(f"columns={self.columns} must name at least one column, and each only once.")

    @property
    def is_open(self) -> bool:
        return getattr(self, self.first) is None

    def check(self, num_columns: int) -> None:
        kind, given = type(self).__name__, getattr(self, self.first)
        own = num_columns if self.columns is None else len(self.columns)
        if self.columns is not None and max(self.columns) >= num_columns:
            raise InvalidInputError(
                f"{kind} is for column {max(self.columns)}, but the inputs have columns 0..{num_columns - 1}."
            )
        if isinstance(given, list) and len(given) != own:
            raise InvalidInputError(
                f"{kind} has {len(given)} values of {self.first} for {own} columns: give one, or one for each column."
            )

    def size(self, num_columns: int | None) -> int:
        given = getattr(self, self.first)
        own = num_columns if self.columns is None or num_columns is None else len(self.columns)
        return (len(given) if isinstance(given, list) else own or 1) + len(self.others)

    def start(self, rows: Tensor | None, each_column: bool = False) -> Tensor:
        """The hyperparameters that were given; a missing lengthscale is the median distance between `rows`."""
        given = getattr(self, self.first)
        device = rows.device if rows is not None and has_float64(rows.device) else None
        if given is None and rows is not None:
            first = median_distance(self._own(rows)).reshape(1)
        else:
            first = torch.tensor(given if isinstance(given, list) else [given or 1.0], dtype=torch.float64)
        if each_column and rows is not None:
            first = first.expand(self._own(rows).shape[1])
        others = torch.tensor([getattr(self, name) for name in self.others], dtype=torch.float64)
        return torch.cat([first.to(device), others.to(device)])

    def kinds(self, num_columns: int, count: int) -> list[str]:
        return [self.first] * (count - len(self.others)) + list(self.others)

    def matrix(self, rows: Tensor, values: Tensor) -> Tensor:
        count = len(values) - len(self.others)
        return self.covariance(self._own(rows), values[:count], *values[count:])

    @abstractmethod
    def covariance(self, rows: Tensor, first: Tensor, *others: Tensor) -> Tensor:
        """k at all pairs of `rows`, which have the kernel's own columns, with these hyperparameters."""

    def _own(self, rows: Tensor) -> Tensor:
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
        return rbf_kernel(rows, first, *others)


class Matern(_ColumnKernel):
    """Functions that are less smooth than `RBF`'s: with r as there, variance times

        smoothness ½:  exp(−r),  continuous functions;
        smoothness 1½: (1 + √3 r) exp(−√3 r),  once differentiable;
        smoothness 2½: (1 + √5 r + 5r²/3) exp(−√5 r),  twice differentiable.

    Args:
        smoothness: 0.5, 1.5 or 2.5.
        lengthscale: One number for all columns, or one for each. None takes the median distance between training
            inputs.
        variance: The variance of every function value.
        columns: The columns that the kernel looks at; None means all.
    """

    def __init__(
        self,
        smoothness: float = 2.5,
        lengthscale: PerColumn = None,
        variance: float = 1.0,
        columns: Sequence[int] | None = None,
    ) -> None:
        super().__init__(columns)
        if smoothness not in _MATERN:
            raise InvalidInputError(f"smoothness={smoothness!r} must be 0.5, 1.5 or 2.5.")
        self.smoothness = smoothness
        self.lengthscale = _check_per_column("lengthscale", lengthscale)
        self.variance = check_positive("variance", variance)

    def covariance(self, rows: Tensor, first: Tensor, *others: Tensor) -> Tensor:
        """k at all pairs of `rows`."""
        distance = math.sqrt(2 * self.smoothness) * _distances(rows, first)
        return others[0] * _MATERN[self.smoothness](distance) * (-distance).exp()


_MATERN: dict[float, Callable[[Tensor], Tensor]] = {
    0.5: torch.ones_like,
    1.5: lambda s: 1 + s,
    2.5: lambda s: 1 + s + s.square() / 3,
}
"""The polynomial in s = √(2·smoothness) r before exp(−s)."""


class Periodic(_ColumnKernel):
    """variance · exp(−2 Σᵢ sin²(π (xᵢ − x′ᵢ)/period)/lengthscaleᵢ²): functions that repeat themselves.

    Args:
        period: After which distance the functions repeat, the same for all columns.
        lengthscale: One number for all columns, or one for each; how fast functions change within a period.
        variance: The variance of every function value.
        columns: The columns that the kernel looks at; None means all.
    """

    others = ("variance", "period")

    def __init__(
        self,
        period: float = 1.0,
        lengthscale: float | Sequence[float] = 1.0,
        variance: float = 1.0,
        columns: Sequence[int] | None = None,
    ) -> None:
        super().__init__(columns)
        self.period = check_positive("period", period)
        self.lengthscale = _check_per_column("lengthscale", lengthscale)
        self.variance = check_positive("variance", variance)

    def covariance(self, rows: Tensor, first: Tensor, *others: Tensor) -> Tensor:
        """The RBF kernel of points on circles, one per column: their squared distance is 4 sin²(π (x − x′)/period)."""
        variance, period = others
        angle = 2 * math.pi * (rows - rows.mean(0)) / period
        circle = torch.cat([angle.cos() / first, angle.sin() / first], dim=1)
        return rbf_kernel(circle, torch.ones_like(variance), variance)


class Linear(_ColumnKernel):
    """bias + Σᵢ varianceᵢ xᵢ x′ᵢ: straight lines whose slopes have these variances, and whose value at 0 has `bias`.

    Args:
        variance: The variance of the slopes, one number for all columns, or one for each.
        bias: The variance of the value at 0.
        columns: The columns that the kernel looks at; None means all.
    """

    first = "variance"
    others = ("bias",)

    def __init__(
        self,
        variance: float | Sequence[float] = 1.0,
        bias: float = 1.0,
        columns: Sequence[int] | None = None,
    ) -> None:
        super().__init__(columns)
        self.variance = _check_per_column("variance", variance)
        self.bias = check_positive("bias", bias)

    def kinds(self, num_columns: int, count: int) -> list[str]:
        """All of them are variances."""
        return ["variance"] * count

    def covariance(self, rows: Tensor, first: Tensor, *others: Tensor) -> Tensor:
        """k at all pairs of `rows`."""
        return (rows * first) @ rows.T + others[0]


class _Combination(Kernel):
    """Several kernels as one; their hyperparameters follow each other."""

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        parts: list[Kernel] = []
        for kernel in kernels:
            check_type("a part of the kernel", kernel, Kernel, "a kernel such as fsvi.kernels.RBF()")
            parts.extend(kernel.kernels if isinstance(kernel, type(self)) else [kernel])
        if not parts:
            raise InvalidInputError(f"{type(self).__name__} needs at least one kernel.")
        self.kernels: list[Kernel] = parts

    @property
    def is_open(self) -> bool:
        return any(kernel.is_open for kernel in self.kernels)

    def check(self, num_columns: int) -> None:
        for kernel in self.kernels:
            kernel.check(num_columns)

    def size(self, num_columns: int | None) -> int:
        return sum(kernel.size(num_columns) for kernel in self.kernels)

    def start(self, rows: Tensor | None, each_column: bool = False) -> Tensor:
        return torch.cat([kernel.start(rows, each_column) for kernel in self.kernels])

    def kinds(self, num_columns: int, count: int) -> list[str]:
        sizes = self._sizes(num_columns, count)
        return [kind for kernel, n in zip(self.kernels, sizes, strict=True) for kind in kernel.kinds(num_columns, n)]

    def matrices(self, rows: Tensor, values: Tensor) -> Iterator[Tensor]:
        """The parts' matrices."""
        parts = values.split(self._sizes(rows.shape[1], len(values)))
        return (kernel.matrix(rows, part) for kernel, part in zip(self.kernels, parts, strict=True))

    def _sizes(self, num_columns: int, count: int) -> list[int]:
        """How many hyperparameters every part has, if they are `count` together."""
        columns = None if count == self.size(None) else num_columns
        return [kernel.size(columns) for kernel in self.kernels]


class Sum(_Combination):
    """Σ k(x, x′): sums of independent functions. Write `first + second`.

    Args:
        kernels: The terms.
    """

    def matrix(self, rows: Tensor, values: Tensor) -> Tensor:
        """k at all pairs of `rows`."""
        return reduce(torch.add, self.matrices(rows, values))


class Product(_Combination):
    """Π k(x, x′): functions alike where all factors say so, such as a periodic one that fades. Write `first * second`.

    Args:
        kernels: The factors.
    """

    def matrix(self, rows: Tensor, values: Tensor) -> Tensor:
        """k at all pairs of `rows`."""
        return reduce(torch.mul, self.matrices(rows, values))


def rbf_kernel(x: Tensor, lengthscale: Tensor, variance: Tensor) -> Tensor:
    """variance · exp(−½ Σᵢ (xᵢ − x′ᵢ)²/lengthscaleᵢ²) for inputs `x` of any shape, in float64, (n, n).

    All numbers of an input share one lengthscale, or each has its own.
    """
    return variance * (-0.5 * _distances(in_float64(x.flatten(1)), lengthscale).square()).exp()


def median_distance(x: Tensor) -> Tensor:
    """The median distance between different inputs, a common choice of lengthscale; 1 if there are none."""
    distances = torch.pdist(in_float64(spread(x).flatten(1)))
    distances = distances[distances > 0]
    return distances.median() if len(distances) else distances.new_ones(())


def spread(values: Any, most: int = _LOOKED_AT) -> Any:
    """At most this many of them, spread evenly."""
    return values[:: math.ceil(len(values) / most)]


def _distances(rows: Tensor, lengthscale: Tensor) -> Tensor:
    """Distances in units of the lengthscales, (n, n)."""
    rows = (rows - rows.mean(0)) / lengthscale  # far from zero, distances would drown in rounding
    return torch.cdist(rows, rows)


def _check_per_column(name: str, value: PerColumn) -> float | list[float] | None:
    if value is None:
        return None
    if isinstance(value, Sequence):
        if not value:
            raise InvalidInputError(f"{name}={value!r} must be a number, or one for each column.")
        return [check_positive(name, each) for each in value]
    return check_positive(name, value)
