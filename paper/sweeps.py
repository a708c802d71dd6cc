"""`fsvi reproduce`: the runs behind a table or figure of the paper."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from fsvi.errors import FSVIError, InvalidInputError
from fsvi.methods.registry import takes_context
from fsvi.parallel import Workers
from fsvi.serialization import check_writable
from fsvi.validation import check_choice, check_count, check_seed
from paper.experiment import CPU, Compute, Order, Profile
from paper.records import Result
from paper.runner.groups import Group, describe, each_made, grouped, is_made, memory_of
from paper.runner.progress import SweepProgress
from paper.runner.runs import checked
from paper.task import Sweep
from paper.tasks.registry import TASKS

SWEEPS: dict[str, Sweep] = {task.sweep.name: task.sweep for task in TASKS.values()}
"""Every sweep by its name."""

_SHOWN = 3
_ENSEMBLE_COST, _CONTEXT_COST = 5, 2
"""Roughly how many times longer an ensemble trains than a member, and a method with context points than MAP."""


@dataclass(frozen=True)
class Shard:
    """One of several parts of a sweep, for the jobs of a batch system.

    Args:
        index: Which part, from 1 to `count`.
        count: The number of parts.
    """

    index: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """The shard that a text such as "1/4" names."""
        index, _, count = text.partition("/")
        numbers = [int(part) for part in (index, count) if part.isdecimal()]
        if len(numbers) != 2 or not 1 <= numbers[0] <= numbers[1]:
            raise InvalidInputError(f"shard={text!r} must be i/n with i from 1 to n, such as 1/4.")
        return cls(*numbers)

    def of(self, groups: Sequence[Group]) -> list[Group]:
        """The groups of this shard. Every group is in exactly one of the shards, whatever results exist.

        The longest groups are dealt first, each to the shard with the least work so far.
        """
        work, shares = [0] * self.count, [list[Group]() for _ in range(self.count)]
        for group in sorted(groups, key=_expected_cost, reverse=True):
            least = work.index(min(work))
            work[least] += _expected_cost(group)
            shares[least].append(group)
        return shares[self.index - 1]


def plan(
    name: str,
    methods: Sequence[str] = (),
    seeds: int | Sequence[int] | None = None,
    profile: Profile = "paper",
    compute: Compute = CPU,
    shard: Shard | None = None,
) -> list[Group]:
    """The runs of a sweep, in groups of seeds that are trained together.

    Args:
        name: A key of `SWEEPS`, or "all".
        methods: Methods to run; all if empty.
        seeds: The number of seeds, or the seeds themselves; None for the sweep's own numbers.
        profile: How much effort each run may take.
        compute: Where and how to train; only on the CPU in float32, seeds are trained together.
        shard: The part of the sweep; None for all of it.
    """
    check_choice("name", name, [*SWEEPS, "all"])
    groups = grouped(_orders(name, methods, seeds, profile), compute)
    return groups if shard is None else shard.of(groups)


def reproduce(
    groups: Sequence[Group],
    out: Path,
    tell: Callable[[str], None] = print,
    workers: Workers | None = None,
    compute: Compute = CPU,
) -> list[Result]:
    """Make all runs of a plan; existing results are reused, and runs of other processes are waited for.

    If a run fails or its process is killed, this is reported and the other runs continue; at the end an error names
    the runs that failed.

    Args:
        groups: What `plan` returned.
        out: The folder for results.
        tell: Receives a line for each run.
        workers: The processes that train at the same time; None to train in this process.
        compute: Where and how to train.
    """
    check_writable(out)
    missing = [group for group in groups if not is_made(group, out)]
    if workers is not None:
        workers = workers.within_machine(memory_of(missing) if workers.is_local else 0, tell)
    results, failed = list[Result](), list[Group]()
    with SweepProgress(_num_runs(groups), _num_runs(groups) - _num_runs(missing), workers, tell) as progress:
        for group, outcome in each_made(groups, out, workers, progress.tell, compute):
            if isinstance(outcome, FSVIError):
                failed.append(group)
            else:
                results += outcome
            if group in missing or isinstance(outcome, FSVIError):
                said = f"failed: {outcome}" if isinstance(outcome, FSVIError) else _summary(outcome)
                runs = len(group) if group in missing else 0
                progress.advance(f"{describe(group)}: {said}", runs, isinstance(outcome, FSVIError))
    if failed:
        names = "; ".join(map(describe, failed))
        raise FSVIError(f"{_num_runs(failed)} of {_num_runs(groups)} runs failed: {names}. The others are done.")
    return results


def _num_runs(groups: Sequence[Group]) -> int:
    return sum(map(len, groups))


def _expected_cost(group: Group) -> int:
    order = group[0]
    members = _ENSEMBLE_COST if order.member != order.method else 1
    return len(group) * members * (_CONTEXT_COST if takes_context(order.method) else 1)


def _summary(results: Sequence[Result]) -> str:
    """The time, and the first columns of the task's first table."""
    first = results[0]
    columns = TASKS[first.task].section.tables[0].columns
    means = [(column, column.mean(results)) for column in columns if column.task == first.task]
    shown = [f"{column.metric.label} {column.metric.show(mean.mean)}" for column, mean in means if mean is not None]
    return ", ".join([f"{sum(result.seconds['train'] for result in results):.0f} s", *shown[:_SHOWN]])


def _orders(name: str, methods: Sequence[str], seeds: int | Sequence[int] | None, profile: Profile) -> Iterator[Order]:
    sweeps = [sweep for sweep in SWEEPS.values() if name in (sweep.name, "all") and sweep.rows_at(profile)]
    if not sweeps:
        have = " and ".join(sweep.name for sweep in SWEEPS.values() if sweep.rows_at(profile))
        raise InvalidInputError(f"{name} has no runs at profile={profile!r}, only {have}.")
    known = sorted({method for sweep in sweeps for method, _ in sweep.rows_at(profile)})
    for method in methods:
        check_choice("methods", method, known)
    for sweep in sweeps:
        tasks = [task.name for task in TASKS.values() if task.sweep == sweep]
        rows = [row for row in sweep.rows_at(profile) if not methods or row[0] in methods]
        chosen = {row: _seeds(seeds, sweep.seeds_of(row, profile)) for row in rows}
        for seed in dict.fromkeys(chain.from_iterable(chosen.values())):
            for task in tasks:
                for method, context in rows:
                    if seed in chosen[method, context]:
                        yield checked(Order(task, method, profile, seed, context))


def _seeds(seeds: int | Sequence[int] | None, own: int) -> Sequence[int]:
    if seeds is None:
        return range(own)
    if isinstance(seeds, int):
        return range(check_count("seeds", seeds))
    return [check_seed(seed) for seed in seeds]
