"""`fsvi reproduce`: the runs behind a table or a figure of the paper."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fsvi.errors import FSVIError, InvalidInputError
from fsvi.experiments.experiment import Order, Profile
from fsvi.experiments.results import Result
from fsvi.experiments.runs import checked, run
from fsvi.validation import check_choice

Row = tuple[str, str | None]
"""a method, and its context"""

_BASELINES: tuple[Row, ...] = (
    ("map", None),
    ("mfvi", None),
    ("mfvi-tempered", None),
    ("mfvi-radial", None),
    ("mc-dropout", None),
    ("swag", None),
    ("duq", None),
    ("laplace", None),
)


@dataclass(frozen=True)
class Sweep:
    """The runs of a table or figure.

    Attributes:
        tasks: The tasks.
        rows: The methods, with their contexts.
        seeds: How many seeds the paper averages over.
    """

    tasks: tuple[str, ...]
    rows: tuple[Row, ...]
    seeds: int = 1


UCI = tuple(f"uci-{name}" for name in ("boston", "concrete", "energy", "wine", "yacht", "protein"))

SWEEPS: dict[str, Sweep] = {
    "table1": Sweep(
        ("fashion-mnist",),
        (
            *_BASELINES,
            ("spg", "monochrome"),
            ("fsvi", "monochrome"),
            ("fsvi", "kmnist"),
            ("ensemble:map", None),
            ("ensemble:fsvi", "monochrome"),
        ),
        seeds=5,
    ),
    "table2": Sweep(
        ("cifar10",),
        (
            *(row for row in _BASELINES if row[0] != "mfvi-radial"),
            ("vogn", None),
            ("spg", "monochrome"),
            ("fsvi", "monochrome"),
            ("fsvi", "cifar100"),
            ("ensemble:map", None),
            ("ensemble:fsvi", "monochrome"),
        ),
        seeds=5,
    ),
    "retina": Sweep(
        ("retina",),
        (("map", None), ("mfvi", None), ("mc-dropout", None), ("fsvi", None), ("ensemble:map", None)),
        seeds=3,
    ),
    "uci": Sweep(UCI, (("fsvi", None), ("map", None), ("mfvi", None), ("fbnn", None)), seeds=10),
    "rotated": Sweep(("rotated-mnist",), (("map", None), ("mfvi", None), ("mc-dropout", None), ("fsvi", None))),
    "toy": Sweep(
        ("two-moons", "snelson", "oat1d", "subspace"), (("fsvi", None), ("mfvi", None), ("ensemble:map", None))
    ),
}
"""Every table and figure by its name."""


def reproduce(
    name: str,
    out: Path,
    methods: Sequence[str] = (),
    seeds: int | None = None,
    profile: Profile = "paper",
    tell: Callable[[str], None] = print,
) -> list[Result]:
    """Run everything that `name`, a key of `SWEEPS` or "all", needs; results that are there are not made again.

    `methods` leaves others out. A run that fails is told of, and the others go on; at the end the first error is raised.
    """
    orders = list(_orders(check_choice("name", name, [*SWEEPS, "all"]), methods, seeds, profile))
    results, errors = [], []
    for number, order in enumerate(orders, start=1):
        tell(f"[{number}/{len(orders)}] {describe(order)}")
        try:
            results.append(run(order, out, tell))
        except FSVIError as error:
            tell(f"  failed: {error}")
            errors.append(error)
    if errors:
        raise FSVIError(f"{len(errors)} of {len(orders)} runs failed; the first because {errors[0]}")
    return results


def describe(order: Order) -> str:
    """The order in a few words."""
    context = f" ({order.context})" if order.context else ""
    return f"{order.task} {order.method}{context}, {order.profile}, seed {order.seed}"


def _orders(name: str, methods: Sequence[str], seeds: int | None, profile: Profile) -> Iterator[Order]:
    sweeps = list(SWEEPS.values()) if name == "all" else [SWEEPS[name]]
    rows = {method for sweep in sweeps for method, _ in sweep.rows}
    for method in methods:
        if method not in rows:
            raise InvalidInputError(f"{name} has no row {method!r}: there are {', '.join(sorted(rows))}.")
    for sweep in sweeps:
        for seed in range(seeds or sweep.seeds):
            for task in sweep.tasks:
                for method, context in sweep.rows:
                    if not methods or method in methods:
                        yield checked(Order(task, method, profile, seed, context))
