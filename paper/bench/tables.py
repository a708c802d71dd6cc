"""`fsvi bench --tables`: whether the estimators' promises hold on real tables with default settings."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fsvi.errors import DataNotFoundError, FileFormatError
from fsvi.estimators import FSVIClassifier, FSVIRegressor
from fsvi.serialization import check_writable, write_bytes
from fsvi.validation import check_choice
from paper import data
from paper.records import read_document, write_document

_UCI = ("boston", "concrete", "energy", "wine", "yacht", "protein")
_MOST_ROWS = 5_000
_GAUSSIAN_PROCESS_ROWS = 1_000
_FAR_ROWS = 300
"""Test rows that are shifted, at most: each is predicted for every column and direction."""
_FAR, _NEAR = 8.0, 2.0
"""Shifts, in standard deviations of each column."""
_LEAST = 1e-12
Array = NDArray[Any]


@dataclass(frozen=True)
class Table:
    """A table to learn from.

    Attributes:
        name: Its name.
        is_classification: Whether targets are classes.
        load: A function that reads it.
    """

    name: str
    is_classification: bool
    load: Callable[[], tuple[Array, Array]]


def _uci(name: str) -> tuple[Array, Array]:
    table = data.load(name, "train")
    x, y = (np.asarray(part, dtype=np.float64) for part in (table.x, table.y))
    y = y.reshape(-1)
    chosen = np.random.RandomState(0).permutation(len(x))[:_MOST_ROWS]
    return x[chosen], y[chosen]


def _builtin(load: Callable[..., Any]) -> Callable[[], tuple[Array, Array]]:
    return lambda: load(return_X_y=True)


TABLES = (
    Table("iris", True, _builtin(datasets.load_iris)),
    Table("wine classes", True, _builtin(datasets.load_wine)),
    Table("breast cancer", True, _builtin(datasets.load_breast_cancer)),
    Table("digits", True, _builtin(datasets.load_digits)),
    Table("diabetes", False, _builtin(datasets.load_diabetes)),
    *(Table(name, False, lambda name=name: _uci(name)) for name in _UCI),  # type: ignore[misc]
)
"""The tables of the bench."""


# Models ---------------------------------------------------------------------------------------------------------------


def make_models(is_classification: bool, num_rows: int, seed: int) -> dict[str, Any]:
    """Unfitted models by name; a Gaussian process only for tables that it can handle.

    Args:
        is_classification: Whether targets are classes.
        num_rows: The number of training rows.
        seed: The seed of the models.
    """
    ours = FSVIClassifier if is_classification else FSVIRegressor
    models = {name: ours(name, random_state=seed) for name in ("fsvi", "map")}
    models["ensemble"] = ours("ensemble:map", settings={"size": 5}, random_state=seed)
    network, forest = (
        (MLPClassifier, RandomForestClassifier) if is_classification else (MLPRegressor, RandomForestRegressor)
    )
    models["sklearn MLP"] = make_pipeline(StandardScaler(), network(early_stopping=True, random_state=seed))
    models["forest"] = forest(random_state=seed)
    if num_rows <= _GAUSSIAN_PROCESS_ROWS:
        models["GP"] = make_pipeline(StandardScaler(), _gaussian_process(is_classification, seed))
    return models


def _gaussian_process(is_classification: bool, seed: int) -> Any:
    kernel = ConstantKernel() * RBF(3.0)
    if is_classification:
        return GaussianProcessClassifier(kernel, random_state=seed)
    return GaussianProcessRegressor(kernel + WhiteKernel(0.1), normalize_y=True, random_state=seed)


def predict_moments(model: Any, x: Array) -> tuple[Array, Array | None]:
    """E[y] and the standard deviation of y; for a forest, the standard deviation between its trees.

    Args:
        model: The fitted model.
        x: Rows.
    """
    if hasattr(model, "estimators_") and hasattr(model, "n_estimators"):
        trees = np.stack([tree.predict(x) for tree in model.estimators_])
        return trees.mean(0), trees.std(0)
    last = model.steps[-1][1] if hasattr(model, "steps") else model
    if isinstance(last, MLPRegressor):
        return model.predict(x), None
    mean, std = model.predict(x, return_std=True)
    return mean, std


# Measuring ------------------------------------------------------------------------------------------------------------


def uncertainty(model: Any, x: Array, is_classification: bool, scale: float) -> Array | None:
    """The entropy divided by its maximum, or the standard deviation in units of the targets', per row.

    Args:
        model: The fitted model.
        x: Rows.
        is_classification: Whether targets are classes.
        scale: The standard deviation of the targets.
    """
    if is_classification:
        p = np.clip(model.predict_proba(x), _LEAST, 1)
        entropy: Array = -(p * np.log(p)).sum(1) / math.log(p.shape[1])
        return entropy
    std = predict_moments(model, x)[1]
    return None if std is None else std / scale


def shift_all(x: Array, std: Array, size: float, random: np.random.RandomState) -> dict[str, Array]:
    """Rows with all columns moved: with independent signs, up, and down.

    Args:
        x: Rows.
        std: The standard deviation of each column.
        size: The shift in standard deviations.
        random: The source of random numbers.
    """
    signs = random.choice([-1.0, 1.0], x.shape)
    return {"signs": x + size * std * signs, "up": x + size * std, "down": x - size * std}


def measure_uncertainty(model: Any, table: Table, train: tuple[Array, Array], x: Array, seed: int) -> dict[str, float]:
    """Mean uncertainty on test rows, and on rows outside of the data at both distances.

    Args:
        model: The fitted model.
        table: The table.
        train: Training rows.
        x: Test rows.
        seed: The seed of the shifts.
    """
    std, scale = train[0].std(0), 1.0 if table.is_classification else float(train[1].std())
    random = np.random.RandomState(seed)
    x = x[:_FAR_ROWS]

    def mean(rows: Array) -> float:
        values = uncertainty(model, rows, table.is_classification, scale)
        return math.nan if values is None else float(values.mean())

    measured = {"on": mean(x)}
    for label, size in (("8", _FAR), ("2", _NEAR)):
        measured |= {f"{name} {label}": mean(rows) for name, rows in shift_all(x, std, size, random).items()}
        steps = [sign * size * std * unit for unit in np.eye(len(std))[std > 0] for sign in (1, -1)]
        # One call for many columns: calls of small tables cost more than the rows.
        single = [mean(np.concatenate([x + step for step in steps[i : i + 2]])) for i in range(0, len(steps), 2)]
        measured |= {f"one {label}": float(np.mean(single)), f"worst {label}": float(np.min(single))}
    return measured


def measure_fit(model: Any, table: Table, x: Array, y: Array, scale: float) -> dict[str, float]:
    """How well a model predicts test rows.

    Args:
        model: The fitted model.
        table: The table.
        x: Test rows.
        y: Their targets.
        scale: The standard deviation of the targets.
    """
    if table.is_classification:
        p = np.clip(model.predict_proba(x), _LEAST, 1)
        index = np.searchsorted(model.classes_, y)
        return {
            "accuracy": float((p.argmax(1) == index).mean()),
            "nll": float(-np.log(p[np.arange(len(y)), index]).mean()),
        }
    mean, std = predict_moments(model, x)
    measured = {"rmse": float(np.sqrt(((y - mean) ** 2).mean())) / scale}
    if std is None:
        return measured
    std = np.maximum(std, 1e-6 * scale)
    z = (y - mean) / std
    nll = 0.5 * z**2 + np.log(std / scale) + 0.5 * math.log(2 * math.pi)
    return {**measured, "nll": float(nll.mean()), "coverage": float((np.abs(z) < 1.959964).mean())}


def measure_table(table: Table, seeds: Sequence[int], tell: Callable[[str], None]) -> dict[str, Any]:
    """Every model on a table, averaged over seeds, with a quarter of the rows held out.

    Args:
        table: The table.
        seeds: The seeds of splits and models.
        tell: A function that shows a line of text.
    """
    x, y = table.load()
    results: dict[str, list[dict[str, float]]] = {}
    for seed in seeds:
        stratify = y if table.is_classification else None
        x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.25, random_state=seed, stratify=stratify)
        for name, model in make_models(table.is_classification, len(x_train), seed).items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                started, cpu_started = time.perf_counter(), time.process_time()
                model.fit(x_train, y_train)
                seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
                scale = 1.0 if table.is_classification else float(y_train.std())
                row = measure_fit(model, table, x_test, y_test, scale)
                row |= measure_uncertainty(model, table, (x_train, y_train), x_test, seed)
            results.setdefault(name, []).append({"seconds": seconds, "cpu": cpu_seconds, **row})
        tell(f"{table.name}: seed {seed} done")
    means = {
        name: {key: float(np.mean([row[key] for row in rows])) for key in rows[0]} for name, rows in results.items()
    }
    return {
        "table": table.name,
        "kind": "classification" if table.is_classification else "regression",
        "rows": len(x),
        "columns": x.shape[1],
        "seeds": list(seeds),
        "models": {name: _finite(row) for name, row in means.items()},
        "by_seed": {name: [_finite(row) for row in rows] for name, rows in results.items()},
    }


def _finite(row: Mapping[str, float]) -> dict[str, float]:
    """What was measured; a model without a standard deviation has no likelihood, for instance."""
    return {name: value for name, value in row.items() if math.isfinite(value)}


# Checks ---------------------------------------------------------------------------------------------------------------


def check_promises(result: Mapping[str, Any]) -> dict[str, bool]:
    """Which promises hold on a table."""
    ours, point = result["models"]["fsvi"], result["models"]["map"]
    directions = ("signs", "up", "down")
    if result["kind"] == "classification":
        checks = {
            "accuracy ≥ MAP − 1 point": ours["accuracy"] >= point["accuracy"] - 0.01,
            "NLL ≤ 1.1 MAP": ours["nll"] <= 1.1 * point["nll"],
            **{f"entropy ≥ .85, {name} 8": ours[f"{name} 8"] >= 0.85 for name in directions},
            "entropy ≥ .6, one 8": ours["one 8"] >= 0.6,
        }
    else:
        checks = {
            "RMSE ≤ 1.1 MAP": ours["rmse"] <= 1.1 * point["rmse"],
            # A density's NLL may be negative, where a factor means nothing: a tenth of its size is allowed.
            "NLL ≤ 1.1 MAP": ours["nll"] <= point["nll"] + 0.1 * abs(point["nll"]),
            "coverage 92–98%": 0.92 <= ours["coverage"] <= 0.98,
            **{f"std ≥ .7, {name} 8": ours[f"{name} 8"] >= 0.7 for name in directions},
            "std doubles, one 8": ours["one 8"] >= 2 * ours["on"],
        }
    return {
        **checks,
        **{f"more than on the data, {name} 2": ours[f"{name} 2"] > ours["on"] for name in (*directions, "one")},
    }


def time_ratio(result: Mapping[str, Any]) -> float:
    """The processor time of a fit over that of MAP: unlike the wall clock, it leaves out what other programs do."""
    models = result["models"]
    return float(models["fsvi"]["cpu"] / models["map"]["cpu"])


def render_markdown(results: Sequence[Mapping[str, Any]]) -> str:
    """All results as Markdown: promises, then what each model does."""
    lines = ["| table | rows × columns | promises | time ÷ MAP | broken |", "|---|---|---|---|---|"]
    for result in results:
        checks = check_promises(result)
        broken = "; ".join(name for name, holds in checks.items() if not holds) or "none"
        size, kept = f"{result['rows']} × {result['columns']}", f"{sum(checks.values())}/{len(checks)}"
        lines.append(f"| {result['table']} | {size} | {kept} | {time_ratio(result):.2f} | {broken} |")
    if results:
        lines.append("")
        lines.append(f"Median time ÷ MAP: {np.median([time_ratio(result) for result in results]):.2f}.")
    for kind, columns in _COLUMNS.items():
        chosen = [result for result in results if result["kind"] == kind]
        if chosen:
            lines += ["", f"| {kind} | model | {' | '.join(columns)} |", "|---" * (len(columns) + 2) + "|"]
        for result in chosen:
            for name, row in result["models"].items():
                cells = [f"{row[column]:.3f}" if column in row else "–" for column in columns]
                lines.append(f"| {result['table']} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


_FAR_COLUMNS = ("on", "signs 8", "up 8", "down 8", "one 8", "worst 8", "signs 2", "up 2", "down 2", "one 2", "cpu")
_COLUMNS = {
    "classification": ("accuracy", "nll", *_FAR_COLUMNS),
    "regression": ("rmse", "nll", "coverage", *_FAR_COLUMNS),
}


def run_table_bench(
    out: Path,
    seeds: Sequence[int],
    tell: Callable[[str], None],
    names: str | None = None,
    own: Sequence[Table] = (),
) -> None:
    """Measure tables, and write one JSON file per table and `tables.md`.

    A table that was measured with the same seeds is not measured again. Tables that are not there are left out.

    Args:
        out: The folder to write to.
        seeds: The seeds of splits and models.
        tell: A function that shows a line of text.
        names: The names of tables, separated by commas; None measures all.
        own: Tables to measure instead.
    """
    check_writable(out)
    _warm_up()
    wanted = (
        None
        if names is None
        else [check_choice("only", name.strip(), [table.name for table in own or TABLES]) for name in names.split(",")]
    )
    results = []
    for table in own or TABLES:
        if wanted is not None and table.name not in wanted:
            continue
        path = out / f"{table.name.replace(' ', '_')}.json"
        result = _read(path, seeds)
        if result is None:
            try:
                result = measure_table(table, seeds, tell)
            except DataNotFoundError as error:
                tell(f"{table.name} is left out: {error}")
                continue
            write_document(path, result)
        results.append(result)
        write_bytes(out / "tables.md", render_markdown(results).encode())
    tell(render_markdown(results))
    tell(f"Written to {out / 'tables.md'}.")


def _warm_up() -> None:
    """Fit once before anything is timed: the first steps of a process load libraries."""
    x, y = datasets.make_friedman1(60, random_state=0)
    for method in ("fsvi", "map"):
        FSVIRegressor(method, epochs=2, random_state=0).fit(x, y)


def _read(path: Path, seeds: Sequence[int]) -> dict[str, Any] | None:
    """An earlier result with the same seeds, if there is one."""
    try:
        result = read_document(path)
    except FileFormatError:
        return None
    return result if result.get("seeds") == list(seeds) else None
