"""`python -m paper`: runs, sweeps, tuning, reports, benchmarks and datasets."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections import Counter
from pathlib import Path
from typing import Any

from joblib import cpu_count

from fsvi.errors import FSVIError
from fsvi.networks.devices import find_device
from fsvi.ranks import check_alone
from fsvi.training.loop import PRECISIONS
from fsvi.validation import check_choice, first_line
from paper import data
from paper.data.catalog import ENTRIES, entry_of
from paper.experiment import PROFILES, Order

HERE = Path(__file__).resolve().parent
_MOST_JOBS = 4
"""The most models that the demo trains at the same time."""


def demo(given: Namespace) -> None:
    """Train on four toy tasks and write a report with pictures."""
    from paper import sweeps
    from paper.report import write_report

    print("Training on the toy tasks: a few minutes on 2 cores.")
    orders = sweeps.plan("toy", seeds=1, profile="smoke" if given.quick else "paper", **_compute(given))
    workers = sweeps.Workers(given.jobs or min(_MOST_JOBS, cpu_count()), threads=1)
    sweeps.reproduce(orders, given.out, print, workers)
    write_report(given.out, given.out, is_demo=True)


def run(given: Namespace) -> None:
    """Train a method on a task of the paper, evaluate it and write the result; an interrupted run resumes."""
    from paper import runs, sweeps

    order = Order(given.task, given.method, given.profile, given.seed, given.context, **_compute(given))
    print(*sweeps.measures(runs.run(order, given.out)), sep="\n")


def reproduce(given: Namespace) -> None:
    """Make all runs behind a table or figure of the paper; a killed sweep continues."""
    from paper import runs, sweeps

    orders = sweeps.plan(given.what, given.methods, given.seeds, given.profile, **_compute(given))
    if given.list:
        states = [runs.state(order, given.out) for order in orders]
        for state, order in zip(states, orders, strict=True):
            print(f"{state:<12} {order}")
        print(", ".join(f"{count} {state}" for state, count in Counter(states).items()) + ".")
        return
    threads = given.threads or (1 if given.jobs > 1 else None)
    workers = sweeps.Workers(given.jobs, given.backend, threads)
    sweeps.reproduce(orders, given.out, print, workers)


def tune(given: Namespace) -> None:
    """Search for hyperparameters on held-out training data; processes with the same command share the trials."""
    from paper.tuning import tune

    order = Order(given.task, given.method, given.profile, given.seed, **_compute(given))
    found = tune(order, given.out, given.trials, given.contexts, print, given.splits, given.storage, given.seconds)
    print(f"Best: {found['best']}")


def report(given: Namespace) -> None:
    """Write tables and figures next to the paper's, as one HTML page and as Markdown."""
    from paper.report import write_report

    write_report(given.results, given.out or given.results)


def bench(given: Namespace) -> None:
    """Measure the cost of training steps and predictions, or the estimators on tables."""
    from paper import bench

    if given.tables:
        seeds = range(given.first_seed, given.first_seed + given.seeds)
        bench.run_table_bench(given.out, seeds, tell=print, names=given.only, models=given.models, splits=given.splits)
    else:
        bench.run_bench(given.out, given.quick, given.only, others=given.peers)


def show_data(given: Namespace) -> None:
    """List the datasets, download them, or check the hashes of the files that are here."""
    if given.action == "list":
        for entry in ENTRIES.values():
            here = [split for split in entry.splits if data.available(entry.name, split)]
            print(f"{entry.name:<16} {', '.join(here) or 'not here':<24}  {entry.description}; {entry.license}")
    elif given.action == "get":
        for name in given.names:
            for split in entry_of(name).splits:
                _, paths, _ = data.ensure(name, split)
                print(f"{name} {split}: {', '.join(map(str, paths))}")
    else:
        checks = [check for name in given.names or data.names() for check in data.verify(name)]
        for verdict, file in checks:
            print(f"{verdict:<11} {file}")
        wrong = [file for verdict, file in checks if verdict == "wrong"]
        if wrong:
            raise FSVIError(f"{len(wrong)} files are not the published ones: delete {', '.join(wrong)}.")


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m paper", description="Reproduce the experiments of the paper.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def add(name: str, function: Any, out: Path | None = None, compute: bool = True) -> ArgumentParser:
        text = function.__doc__
        added = commands.add_parser(name, help=text, description=text, formatter_class=RawDescriptionHelpFormatter)
        added.set_defaults(function=function)
        added.add_argument("--debug", action="store_true", help="show the traceback of an error")
        if out is not None:
            added.add_argument("--out", type=Path, default=out, help=f"folder to write to (default: {out.name})")
        if compute:
            added.add_argument("--device", help="where to compute: cpu, cuda, mps or auto (default: cpu)")
            added.add_argument("--precision", help="bf16 or fp16 trains the network in that type (default: float32)")
        return added

    def order(added: ArgumentParser, profile: str) -> None:
        added.add_argument("task", help="such as fashion-mnist or uci-yacht")
        added.add_argument("method", help="such as fsvi, map or ensemble:map")
        added.add_argument("--seed", type=int, default=0, help="seed of the split, of initial parameters and training")
        _add_profile(added, profile)

    added = add("demo", demo, Path("demo"))
    added.add_argument("--quick", action="store_true", help="train for a few epochs only")
    added.add_argument("--jobs", type=int, help="models to train at the same time (default: cores, at most 4)")
    added = add("run", run, HERE / "results")
    order(added, "paper")
    added.add_argument("--context", help="context points of FSVI and similar methods: kmnist, monochrome, …")
    added = add("reproduce", reproduce, HERE / "results")
    names = "table1, table2, rotated, retina, reviews, continual, uci, toy, posthoc, pretrained"
    added.add_argument("what", help=f"{names}, or all")
    added.add_argument("--methods", type=_names, default=(), help="only these methods: names separated by commas")
    added.add_argument("--seeds", type=int, help="the number of seeds (default: the sweep's own)")
    _add_profile(added, "paper")
    added.add_argument("--jobs", type=int, default=1, help="runs at the same time, each in a process of its own")
    added.add_argument("--backend", default="loky", help="loky (this machine), ray or dask (here or on a cluster)")
    added.add_argument("--threads", type=int, help="threads per run (default: 1; without --jobs, PyTorch's choice)")
    added.add_argument("--list", action="store_true", help="list the runs and how far they are, and make none of them")
    added = add("tune", tune, HERE / "studies")
    order(added, "quick")
    added.add_argument("--trials", type=int, default=20, help="settings to try, including earlier ones (default: 20)")
    added.add_argument("--contexts", type=_names, default=(), help="contexts to choose from, separated by commas")
    added.add_argument("--splits", type=int, default=1, help="random splits over which a trial is averaged")
    added.add_argument("--storage", help="database that processes share (default: an SQLite file in the folder)")
    added.add_argument("--seconds", type=float, help="start no trial after this time")
    added = add("report", report, compute=False)
    added.add_argument("results", type=Path, nargs="?", default=HERE / "results", help="the folder of results")
    added.add_argument("--out", type=Path, help="folder to write to (default: that of the results)")
    added = add("bench", bench, Path("bench"), compute=False)
    added.add_argument("--quick", action="store_true", help="fewer repetitions, smaller sizes")
    added.add_argument("--peers", action="store_true", help="compare with other libraries, too")
    added.add_argument("--tables", action="store_true", help="measure the estimators on tables instead")
    added.add_argument("--seeds", type=int, default=3, help="how many seeds, with --tables")
    added.add_argument("--models", type=_names, default=(), help="names of models, separated by commas, with --tables")
    added.add_argument(
        "--splits",
        type=_names,
        default=(),
        help="iid, beyond, gap, time, group, far, separated by commas, with --tables",
    )
    added.add_argument("--first-seed", type=int, default=0, help="the first of these seeds")
    added.add_argument(
        "--only", type=_names, default=(), help="measure only this, such as cnn or iris; names separated by commas"
    )
    added = add("data", show_data, compute=False)
    added.add_argument("action", choices=("list", "get", "verify"))
    added.add_argument("names", nargs="*", help="names of datasets; none for all")
    return parser


def _add_profile(added: ArgumentParser, profile: str) -> None:
    text = "paper: the paper's protocol; desk: about an hour (cifar10, retina); quick: minutes; smoke: seconds"
    added.add_argument("--profile", choices=PROFILES, default=profile, help=f"{text} (default: {profile})")


def _names(text: str) -> tuple[str, ...]:
    """The names in a comma-separated option."""
    return tuple(name.strip() for name in text.split(","))


def _compute(given: Namespace) -> dict[str, Any]:
    """Where and how to train; both are checked before anything else happens."""
    device = None if given.device is None else str(find_device(given.device))
    return {"device": device, "precision": given.precision and check_choice("precision", given.precision, PRECISIONS)}


def main() -> None:
    """Run the command line. Errors are one sentence, unless --debug asks for the traceback."""
    given = _parser().parse_args()
    try:
        check_alone("python -m paper")
        given.function(given)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except Exception as error:
        if given.debug:
            raise
        said = str(error) if isinstance(error, FSVIError) else f"{type(error).__name__}: {first_line(error)} (--debug)"
        print(f"Error: {said}", file=sys.stderr)
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
