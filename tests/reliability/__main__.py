"""`python -m reliability`: kill trainings, spoil files, count what comes of it, and write the counts down."""

import argparse
import json
import math
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from reliability.corruptions import Spoiled, Whole, spoil_models, spoil_results
from reliability.kills import Assassin, Tally, Training, fit, run

FITS = ("conditional", "jvp", "learned_noise", "batch_norm", "map", "mfvi")
RUNS = (("two-moons", "fsvi", False), ("snelson", "mfvi", False), ("two-moons", "map", True))
RUN_SHARE = 0.4
KILLS_EACH = 5


def main() -> None:
    """Everything, into one folder; the exit code says whether nothing was lost and nothing went unnoticed."""
    options = parsed()
    torch.set_num_threads(1)
    out = Path(options.out).absolute()
    out.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="fsvi-reliability-"))
    try:
        report = {"seed": options.seed, **killed(place, options), **spoiled(place, options)}
    finally:
        shutil.rmtree(place)
    (out / "reliability.json").write_text(json.dumps(report, indent=1) + "\n")
    (out / "reliability.md").write_text(table(report))
    print(table(report))
    raise SystemExit(0 if is_clean(report) else 1)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="reliability", description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--corruptions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="reliability")
    return parser.parse_args()


def killed(place: Path, options: argparse.Namespace) -> dict[str, Any]:
    in_runs = round(RUN_SHARE * options.kills)
    trials = [
        ("fit", [fit(name) for name in FITS], options.kills - in_runs),
        ("fsvi run", [run(*each) for each in RUNS], in_runs),
    ]
    counts = {}
    for kind, trainings, kills in trials:
        tallies = list(kill(trainings, kills, place / kind, options.seed))
        counts[kind] = total(tallies)
    return {"kills": counts}


def kill(trainings: list[Training], kills: int, place: Path, seed: int) -> Iterator[Tally]:
    """Share the kills among the trainings; a few kills among a few of them, since each is also left alone twice."""
    chosen = trainings[: math.ceil(kills / KILLS_EACH)]
    for index, training in enumerate(chosen):
        share = kills // len(chosen) + (index < kills % len(chosen))
        print(f"killing {training.name} {share} times", flush=True)
        yield Assassin(training, place / training.name, seed).kill(share)


def total(tallies: list[Tally]) -> dict[str, Any]:
    kills: Counter[str] = sum((tally.kills for tally in tallies), Counter())
    return {
        "kills": kills.total(),
        "moments": dict(sorted(kills.items())),
        "in the middle of a file": sum(tally.in_a_write for tally in tallies),
        "trainings resumed to their end": sum(tally.resumed for tally in tallies),
        "bit-identical": sum(tally.identical for tally in tallies),
        "left behind": [name for tally in tallies for name in tally.left_behind],
    }


def spoiled(place: Path, options: argparse.Namespace) -> dict[str, Any]:
    models, results = options.corruptions - options.corruptions // 2, options.corruptions // 2
    print(f"spoiling {models} models and {results} results", flush=True)
    whole = Whole.make(place / "whole")
    os.chdir(place)  # where a pickle that was run would leave its mark
    return {
        "corruptions": {
            "model": summary(spoil_models(place, whole, models, options.seed)),
            "result": summary(spoil_results(place, whole, results, options.seed)),
        }
    }


def summary(all_spoiled: list[Spoiled]) -> dict[str, Any]:
    outcomes = ("detected", "harmless", "unnoticed", "unclear", "traceback", "code run")
    return {
        "corruptions": len(all_spoiled),
        **{name: sum(each.outcome == name for each in all_spoiled) for name in outcomes},
        "kinds": {
            kind: sum(each.kind == kind for each in all_spoiled) for kind in sorted({s.kind for s in all_spoiled})
        },
        "failures": [f"{each.kind} {each.seed}: {each.said}" for each in all_spoiled if each.is_failure],
    }


def is_clean(report: dict[str, Any]) -> bool:
    kills, corruptions = report["kills"].values(), report["corruptions"].values()
    return all(
        each["bit-identical"] == each["trainings resumed to their end"] and not each["left behind"] for each in kills
    ) and not any(each["failures"] for each in corruptions)


def table(report: dict[str, Any]) -> str:
    """The counts as Markdown."""
    lines = ["| Killed by SIGKILL | kills | in the middle of a file | resumed | bit-identical | files left behind |"]
    lines += ["|---|--:|--:|--:|--:|--:|"]
    for name, each in report["kills"].items():
        numbers = [each[key] for key in ("kills", "in the middle of a file", "trainings resumed to their end")]
        cells = [f"`{name}`", *numbers, each["bit-identical"], len(each["left behind"])]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    outcomes = ("corruptions", "detected", "harmless", "unnoticed", "unclear", "traceback", "code run")
    lines += ["", f"| Spoiled | {' | '.join(outcomes)} |", "|---|" + "--:|" * len(outcomes)]
    for name, each in report["corruptions"].items():
        lines.append(f"| {name} | {' | '.join(str(each[key]) for key in outcomes)} |")
    failures = [line for each in report["corruptions"].values() for line in each["failures"]]
    return "\n".join([*lines, *([""] if failures else []), *(f"- {line}" for line in failures), ""])


if __name__ == "__main__":
    main()
