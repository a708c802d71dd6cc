"""`fsvi demo`: the sweep of the toy tasks, followed by the report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fsvi.machine import num_cores
from fsvi.parallel import Workers
from fsvi.serialization import check_writable
from fsvi.validation import check_seed
from paper.experiment import CPU, Compute, Profile
from paper.report.write import write_report
from paper.sweeps import plan, reproduce
from paper.tasks.toy_sweep import TOY_SWEEP

_MOST_JOBS = 4


def run_demo(
    out: Path,
    seed: int = 0,
    quick: bool = False,
    jobs: int | None = None,
    tell: Callable[[str], None] = print,
    compute: Compute = CPU,
) -> Path:
    """Train every method on every toy task, and write the report; returns the path of its page.

    Existing results in the folder are reused.

    Args:
        out: The folder for results and report.
        seed: The seed of initial parameters and training.
        quick: Whether to train for a few epochs only, to check that everything works.
        jobs: The number of models to train at the same time; None for one per core, at most 4.
        tell: Receives a line for each run.
        compute: Where and how to train.
    """
    check_writable(out)
    workers = Workers(min(_MOST_JOBS, num_cores()) if jobs is None else jobs)
    tell("Training on the toy tasks: a few minutes on 2 cores.")
    profile: Profile = "smoke" if quick else "paper"
    seeds = [check_seed(seed)]
    groups = plan(TOY_SWEEP.name, seeds=seeds, profile=profile, compute=compute)
    reproduce(groups, out, tell, None if workers.jobs == 1 else workers, compute)
    return write_report(out, out, tell, introduction="demo_intro.html")
