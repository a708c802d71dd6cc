"""`python -m paper bench --tables`: the estimators on real tables and real shifts, next to boosted trees.

Each table is split at random ("iid"), and so that test rows differ from training rows: above the 85% quantile of an
important column ("beyond"), between its 40% and 60% quantiles ("gap"), after a date ("time"), and in categories that
training rows do not have ("group"). "far" checks the estimators' promises at 2 and 8 standard deviations from the data.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn import datasets
from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

from fsvi import metrics
from fsvi.errors import DataNotFoundError
from fsvi.estimators import FSVIClassifier, FSVIRegressor
from fsvi.serialization import check_writable, write_bytes
from fsvi.validation import check_choice
from paper.bench.table_models import Answer, Array, Run, Split, encoded, make_models
from paper.data.store import find_file

_CLASSES = {
    **{"titanic": "survived", "hdma": "deny", "flchain": "death", "hi": "whi", "benefits": "ui", "weather": "weather"},
    **{"bundesliga": "result", "pbc": "status", "bfi": "gender"},
}
_NUMBERS = {
    **{"diamonds": "price", "movies": "rating", "forbes": "marketvalue", "housing": "price", "computers": "price"},
    **{"slid": "wages", "baseball": "hr", "fair": "affairs", "bike": "count"},
}
_UCI = ("boston", "concrete", "energy", "wine", "yacht", "protein")
_BUILTIN = {
    "iris": datasets.load_iris,
    "wine_classes": datasets.load_wine,
    "breast_cancer": datasets.load_breast_cancer,
    "digits": datasets.load_digits,
    "diabetes": datasets.load_diabetes,
}
_DATES = {"weather": "date", "bundesliga": "Date", "bike": "datetime", "baseball": "year", "movies": "year"}
_GROUPS = {"bundesliga": "HomeTeam", "bike": "station", "forbes": "country", "baseball": "team", "hi": "region"}
_MOST_ROWS = 4_000
_FAR_ROWS = 300
"""Test rows that are shifted, at most: each is predicted for every column and direction."""
_LEAST = 1e-12
_TREES = ("HistGradientBoosting", "LightGBM", "CatBoost")
KINDS = ("iid", "beyond", "gap", "time", "group")
FAR = "far"


@dataclass(frozen=True)
class Table:
    """A table to learn from; `load` reads its rows, and its targets (classes as numbers from 0)."""

    name: str
    load: Callable[[], tuple[pd.DataFrame, Array]]
    is_classification: bool


def _stored(path: str, target: str, is_classification: bool) -> tuple[pd.DataFrame, Array]:
    """A table in a folder that FSVI_DATA names."""
    frame = pd.read_csv(find_file(path)).dropna(subset=[target])
    y = frame.pop(target)
    labels: Array = np.unique(y.astype(str), return_inverse=True)[1]
    return _some(frame, labels if is_classification else y.to_numpy(float))


def _some(frame: pd.DataFrame, y: Array) -> tuple[pd.DataFrame, Array]:
    chosen = np.random.RandomState(0).permutation(len(frame))[:_MOST_ROWS]
    return frame.iloc[chosen].reset_index(drop=True), y[chosen]


def _builtin(load: Callable[..., Any]) -> tuple[pd.DataFrame, Array]:
    read = load(as_frame=True)
    return _some(read.data, read.target.to_numpy())


TABLES = (
    *(Table(name, partial(_stored, f"tables/{name}.csv.gz", y, True), True) for name, y in _CLASSES.items()),
    *(Table(name, partial(_builtin, load), name != "diabetes") for name, load in _BUILTIN.items()),
    *(Table(name, partial(_stored, f"tables/{name}.csv.gz", y, False), False) for name, y in _NUMBERS.items()),
    *(Table(name, partial(_stored, f"uci/{name}.csv.gz", "y", False), False) for name in _UCI),
)


# Splits ---------------------------------------------------------------------------------------------------------------


def rows_to_test(table: Table, x: pd.DataFrame, y: Array, kind: str, seed: int) -> Array | None:
    """Which rows are test rows, (n,) truth values; None if the table has no such split.

    The seed is that of a random split, or says which important column, date or group to split by.
    """
    if kind == "iid":
        return np.isin(np.arange(len(x)), np.random.RandomState(seed).permutation(len(x))[: len(x) // 5])
    if kind == "time":
        return _after(x, _DATES.get(table.name)) if seed == 0 else None
    if kind == "group":
        return _groups(x, _GROUPS.get(table.name), seed)
    columns = _important(x, y, table.is_classification)
    if seed >= len(columns):
        return None
    values = x[columns[seed]].to_numpy(float)
    low, high = (0.85, 1.0) if kind == "beyond" else (0.4, 0.6)
    chosen: Array = (values > np.nanquantile(values, low)) & (values <= np.nanquantile(values, high))
    return chosen


def _after(x: pd.DataFrame, name: str | None) -> Array | None:
    if name is None:
        return None
    values = (
        x[name] if x[name].dtype.kind in "iuf" else pd.to_datetime(x[name], format="mixed", dayfirst="." in x[name][0])
    )
    ranks: Array = values.rank(pct=True).to_numpy()
    return ranks > 0.8


def _groups(x: pd.DataFrame, name: str | None, seed: int) -> Array | None:
    if name is None:
        return None
    levels = np.random.RandomState(seed).permutation(np.unique(x[name].astype(str)))
    chosen: Array = x[name].astype(str).isin(levels[: max(1, len(levels) // 5)]).to_numpy()
    return chosen


def _important(x: pd.DataFrame, y: Array, is_classification: bool) -> list[Any]:
    """Columns of numbers with at least 20 values, those first that a forest uses most."""
    numbers = [name for name in x.columns if x[name].dtype.kind in "iuf" and x[name].nunique() >= 20]
    if not numbers:
        return []
    kind = ExtraTreesClassifier if is_classification else ExtraTreesRegressor
    filled = x[numbers].fillna(x[numbers].median())
    forest = kind(50, min_samples_leaf=5, random_state=0).fit(filled, y)
    return [numbers[i] for i in np.argsort(-forest.feature_importances_)]


def make_split(table: Table, kind: str, seed: int) -> tuple[Split, Array] | None:
    """Training rows, test rows and test targets; None if the table has no such split."""
    x, y = table.load()
    chosen = rows_to_test(table, x, y, kind, seed)
    if chosen is None or chosen.sum() < 20:
        return None
    classes = int(y.max()) + 1 if table.is_classification else 0
    if len(np.unique(y[~chosen])) < classes:
        return None
    kept = np.random.RandomState(seed).permutation(np.flatnonzero(~chosen))
    return Split(x.iloc[kept], y[kept], x[chosen], classes, seed), y[chosen]


# Measuring ------------------------------------------------------------------------------------------------------------


def score(answer: Answer, split: Split, y: Array) -> dict[str, float]:
    """How good an answer is; errors, widths and densities of numbers are in units of the training targets' std."""
    if answer.proba is not None:
        p = torch.from_numpy(answer.proba).clamp(_LEAST, 1)
        p /= p.sum(1, keepdim=True)
        return {"accuracy": metrics.accuracy(p, y), "nll": metrics.nll(p, y), "ece": metrics.ece(p, y, bins=10)}
    scale = float(split.y.std())
    assert answer.mean is not None and answer.lower is not None and answer.upper is not None
    found = {
        "rmse": float(np.sqrt(((y - answer.mean) ** 2).mean())) / scale,
        "coverage": float(((y >= answer.lower) & (y <= answer.upper)).mean()),
        "width": float((answer.upper - answer.lower).mean()) / scale,
    }
    if answer.std is not None:
        z, std = (y - answer.mean) / answer.std, answer.std / scale
        found["nll"] = float((0.5 * z**2 + np.log(std) + 0.5 * math.log(2 * math.pi)).mean())
    return {name: value for name, value in found.items() if math.isfinite(value)}


def measure_far(split: Split) -> dict[str, Any]:
    """The uncertainty on test rows, and with all columns or one column shifted, and which promises hold."""
    x, x_test = encoded(split)
    x_test, std, random = x_test[:_FAR_ROWS], x.std(0), np.random.RandomState(split.seed)
    model: Any = (FSVIClassifier if split.num_classes else FSVIRegressor)(random_state=split.seed).fit(x, split.y)

    def mean(rows: Array) -> float:
        if split.num_classes:
            p = np.clip(model.predict_proba(rows), _LEAST, 1)
            return float(-(p * np.log(p)).sum(1).mean() / math.log(p.shape[1]))
        return float(model.predict(rows, return_std=True)[1].mean() / split.y.std())

    row: dict[str, Any] = {"on": mean(x_test)}
    for label, size in (("8", 8.0), ("2", 2.0)):
        signs = random.choice([-1.0, 1.0], x_test.shape)
        for name, sign in (("signs", signs), ("up", 1.0), ("down", -1.0)):
            row[f"{name} {label}"] = mean(x_test + size * std * sign)
        units = np.eye(len(std))[std > 0]
        chosen = units[random.permutation(len(units))[:30]]
        some = x_test[:50]
        rows = np.concatenate([some + sign * size * std * unit for unit in chosen for sign in (1, -1)])
        row[f"one {label}"] = mean(rows)
    least = min(row["signs 8"], row["up 8"], row["down 8"])
    row["holds"] = {
        "all 8": least >= (0.85 if split.num_classes else 0.7),
        "one 8": row["one 8"] >= (0.6 if split.num_classes else 2 * row["on"]),
        "2": min(row["signs 2"], row["up 2"], row["down 2"], row["one 2"]) > row["on"],
    }
    return row


def measure(
    table: Table,
    seeds: Sequence[int],
    done: Collection[tuple[Any, ...]],
    models: Mapping[str, Run],
    splits: Sequence[str],
) -> Iterator[dict[str, Any]]:
    """What is still to be measured on a table, one result at a time."""
    for kind in splits:
        for seed in seeds if kind == "iid" else seeds[:1]:
            missing = [name for name in models if (table.name, kind, seed, name) not in done]
            missing = [name for name in missing if not (table.is_classification and name.startswith("conformal"))]
            missing = [name for name in missing if kind != FAR or name == "fsvi"]
            found = make_split(table, "iid" if kind == FAR else kind, seed) if missing else None
            for name in missing if found else []:
                split, y = found  # type: ignore[misc]
                keys = {"table": table.name, "split": kind, "seed": seed, "model": name}
                if kind == FAR:
                    yield {**keys, **measure_far(split)}
                else:
                    answer = models[name](split)
                    yield {**keys, "cpu": answer.cpu, **score(answer, split, y)}


# Reporting ------------------------------------------------------------------------------------------------------------


def versus(rows: pd.DataFrame, other: str) -> dict[str, float]:
    """Wins, ties and losses of "fsvi" in accuracy or RMSE (tie: 1 point or 2%), and NLL and time next to another's."""
    keys = ["table", "split", "seed"]
    pairs = rows[rows.model == "fsvi"].merge(rows[rows.model == other], on=keys, suffixes=("", " other"))
    gain = pd.Series(np.nan, pairs.index, dtype=float)
    if "accuracy" in pairs:
        gain = ((pairs["accuracy"] - pairs["accuracy other"]) / 0.01).round(9)
    if "rmse" in pairs:
        gain = gain.fillna(np.log(pairs["rmse other"] / pairs["rmse"]) / math.log(1.02))
    difference = (pairs["nll"] - pairs["nll other"]) if "nll other" in pairs else pd.Series(dtype=float)
    return {
        "wins": int((gain >= 1).sum()),
        "ties": int((gain.abs() < 1).sum()),
        "losses": int((gain <= -1).sum()),
        "NLL not above": float((difference.dropna() <= 0).mean()),
        "mean NLL difference": float(difference.mean()),
        "median time ratio": float((pairs["cpu"] / pairs["cpu other"].clip(lower=1e-3)).median()),
    }


def render_markdown(rows: pd.DataFrame) -> str:
    """A page: "fsvi" against each model, and coverage of 95% intervals, for each kind of split."""
    lines = [
        "| split | against | wins / ties / losses | NLL not above | mean NLL difference | time ratio |",
        "|---" * 6 + "|",
    ]
    for kind in KINDS:
        part = rows[rows.split == kind]
        for other in [name for name in part.model.unique() if name != "fsvi"]:
            v = versus(part, other)
            counts = f"{v['wins']} / {v['ties']} / {v['losses']}"
            numbers = f"{v['NLL not above']:.2f} | {v['mean NLL difference']:+.3f} | {v['median time ratio']:.1f}"
            lines.append(f"| {kind} | {other} | {counts} | {numbers} |")
    lines += [
        "",
        "| split | model | splits | median coverage | in 90–99% | below 90% | median width |",
        "|---" * 7 + "|",
    ]
    for kind in KINDS:
        for name, part in rows[(rows.split == kind) & rows.get("coverage", pd.Series(dtype=float)).notna()].groupby(
            "model"
        ):
            c = part.coverage
            numbers = f"{c.median():.3f} | {c.between(0.9, 0.99).mean():.2f} | {(c < 0.9).mean():.2f}"
            lines.append(f"| {kind} | {name} | {len(c)} | {numbers} | {part.width.median():.2f} |")
    far = rows[rows.split == "far"]
    broken = [f"{row.table}: {name}" for row in far.itertuples() for name, holds in row.holds.items() if not holds]
    lines += ["", f"Far from the data, {3 * len(far) - len(broken)} of {3 * len(far)} promises hold; broken: {broken}."]
    return "\n".join(lines) + "\n"


def draw(rows: pd.DataFrame, path: Path) -> None:
    """The figure of docs/tables.md: coverage of 95% intervals for each kind of split, one dot per split."""
    from matplotlib.figure import Figure

    known = set(rows[rows.coverage.notna()].model)
    conformal = [f"conformal {name}" for name in _TREES]
    names = [name for name in ("fsvi", "map", "ensemble", *_TREES, *conformal) if name in known]
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    axes: Any = figure.subplots(1, 3, sharey=True)
    for ax, kind in zip(axes, ("iid", "beyond", "gap"), strict=True):
        ax.axvspan(0.9, 0.99, color="0.92")
        for at, name in enumerate(names):
            c = rows[(rows.split == kind) & (rows.model == name)].coverage.dropna()
            jitter = np.random.RandomState(0).uniform(-0.25, 0.25, len(c))
            ax.plot(c, at + jitter, ".", color="C0" if name == "fsvi" else "0.5", markersize=4)
            ax.plot([c.median()] * 2, [at - 0.35, at + 0.35], "k")
        ax.set(title=kind, xlabel="coverage of 95% intervals", xlim=(0, 1.02))
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    figure.savefig(path, dpi=120)


def run_table_bench(
    out: Path,
    seeds: Sequence[int],
    tell: Callable[[str], None],
    names: Sequence[str] = (),
    tables: Sequence[Table] = TABLES,
    models: Sequence[str] = (),
    splits: Sequence[str] = (),
) -> None:
    """Measure tables; write `tables.json`, `tables.md` and `tables.png`. What was measured is not measured again.

    Without `names` of tables, `models` or `splits`, all are measured.
    """
    check_writable(out)
    by_name = {table.name: table for table in tables}
    wanted = _chosen("only", names, by_name)
    known = make_models(tell)
    some = {name: known[name] for name in _chosen("models", models, known)}
    kinds, path = _chosen("splits", splits, (*KINDS, FAR)), out / "tables.json"
    rows = json.loads(path.read_text()) if path.is_file() else []
    for name in wanted:
        done = {(row["table"], row["split"], row["seed"], row["model"]) for row in rows}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for row in measure(by_name[name], seeds, done, some, kinds):
                    rows.append(row)
                    write_bytes(path, ("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n").encode())
        except DataNotFoundError as error:
            tell(f"{name} is left out: {error}")
            continue
        tell(f"{name}: {len(rows) - len(done)} new results")
    if rows:
        write_bytes(out / "tables.md", render_markdown(pd.DataFrame(rows)).encode())
        draw(pd.DataFrame(rows), out / "tables.png")
        tell(f"Written to {out / 'tables.md'}.")


def _chosen(option: str, names: Sequence[str], known: Collection[str]) -> list[str]:
    """The names; all without any."""
    return [check_choice(option, name, list(known)) for name in names or known]
