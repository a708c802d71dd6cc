"""`fsvi reproduce`: the runs behind a table or a figure of the paper."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fsvi.errors import FSVIError
from fsvi.experiments.experiment import Order, Profile
from fsvi.experiments.results import Result
from fsvi.experiments.runner.runs import checked, run, run_together, trains_together
from fsvi.experiments.tasks.uci import PREFIX, TABLES
from fsvi.validation import check_choice, check_count

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


UCI = tuple(PREFIX + name for name in TABLES)

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
        seeds=10,
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
        seeds=10,
    ),
    "retina": Sweep(
        ("retina",),
        (("map", None), ("mfvi", None), ("mc-dropout", None), ("fsvi", None), ("ensemble:map", None)),
        seeds=6,
    ),
    "uci": Sweep(
        UCI, (("fsvi", None), ("map", None), ("mfvi", None), ("fbnn", None), ("ensemble:fsvi", None)), seeds=10
    ),
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

    `methods` leaves others out; `seeds` is how many, None for the paper's number. A run that fails is told of, and the
    others go on; the first error is raised last.
    """
    orders = list(_orders(check_choice("name", name, [*SWEEPS, "all"]), methods, seeds, profile))
    results, errors, done = [], [], 0
    for group in _grouped(orders):
        done += len(group)
        tell(f"[{done}/{len(orders)}] {describe(group)}")
        try:
            results += run_together(group, out, tell) if len(group) > 1 else [run(group[0], out, tell)]
        except FSVIError as error:
            tell(f"  failed: {error}")
            errors.append(error)
    if errors:
        raise FSVIError(f"{len(errors)} of the runs failed; the first because {errors[0]}")
    return results


def describe(orders: Sequence[Order]) -> str:
    """Orders that differ in their seeds alone, in a few words."""
    order = orders[0]
    context = f" ({order.context})" if order.context else ""
    seeds = f"seed {order.seed}" if len(orders) == 1 else f"seeds {order.seed} to {orders[-1].seed}"
    return f"{order.task} {order.method}{context}, {order.profile}, {seeds}"


def _grouped(orders: Sequence[Order]) -> list[list[Order]]:
    """Seeds that can be trained together, and other orders alone."""
    groups: dict[tuple[str, ...], list[Order]] = {}
    for order in orders:
        row = (order.task, order.method, order.context or "")
        groups.setdefault(row if trains_together(order) else (*row, str(order.seed)), []).append(order)
    return list(groups.values())


def _orders(name: str, methods: Sequence[str], seeds: int | None, profile: Profile) -> Iterator[Order]:
    sweeps = list(SWEEPS.values()) if name == "all" else [SWEEPS[name]]
    rows = sorted({method for sweep in sweeps for method, _ in sweep.rows})
    for method in methods:
        check_choice("methods", method, rows)
    for sweep in sweeps:
        for seed in range(sweep.seeds if seeds is None else check_count("seeds", seeds)):
            for task in sweep.tasks:
                for method, context in sweep.rows:
                    if not methods or method in methods:
                        yield checked(Order(task, method, profile, seed, context))
