"""Tables of results next to published ones: frames of text with one row per method."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from markupsafe import Markup

from paper.columns import Column, TableLayout, calibration_error, detection, negative_log_likelihood, percent
from paper.methods import full_name, method_title
from paper.records import Result, duration
from paper.tasks.registry import TASKS

PUBLISHED: dict[str, Any] = json.loads((Path(__file__).parents[1] / "published.json").read_text("utf-8"))
"""The tables of Rudner, Chen, Teh and Gal (NeurIPS 2022), of S-FSVI's and of FMGP's authors, in their printed units."""


class Table(NamedTuple):
    """A table of the report: texts by method, where the published values are from, and notes."""

    title: str
    source: str
    frame: pd.DataFrame
    notes: Sequence[str] = ()

    def markdown(self) -> str:
        """The table as Markdown."""
        rows = [[self.frame.index.name, *self.frame.columns], ["---", *["--:"] * self.frame.shape[1]]]
        rows += [[name, *row] for name, *row in self.frame.itertuples()]
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)

    def html(self) -> Markup:
        """The table as HTML, with everything in it escaped."""
        named = self.frame.rename_axis(None).rename_axis(self.frame.index.name, axis=1)
        text = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", named.to_html(border=0, escape=True))
        return Markup(text)


def published_row(task: str, label: str) -> str | None:
    """The published row to compare a label with: the same label, or its method if that row names no context."""
    rows = PUBLISHED.get(task, {}).get("rows", {})
    return next((name for name in (label, label.partition(" (")[0]) if name in rows), None)


def published(task: str, label: str, name: str) -> tuple[float, float | None] | None:
    """The published mean and standard error; None if there is none."""
    table, row = PUBLISHED.get(task), published_row(task, label)
    if table is None or row is None or name not in table["columns"]:
        return None
    cell = table["rows"][row][table["columns"].index(name)]
    return None if cell is None else (cell[0], cell[1])


def fill(layout: TableLayout, profile: str, results: Iterable[Result]) -> Table | None:
    """The table of one profile; None without results."""
    ours = [each for each in results if each.task in layout.tasks and each.profile == profile]
    if not ours:
        return None
    groups = {label: [each for each in ours if each.label == label] for label in _labels(layout, ours)}
    tasks = [each for each in layout.columns if each.name in PUBLISHED.get(each.task, {}).get("columns", ())]
    source = PUBLISHED[tasks[0].task]["source"] if tasks else ""
    frame = pd.DataFrame(index=pd.Index(map(full_name, groups), name="Method"))
    is_filled = False
    for column in layout.columns:
        means, by_entropy = column_means(column, ours), column_means(column, ours, column.by_entropy)
        cells = [_cell(column, label, of, means, by_entropy, bool(source)) for label, of in groups.items()]
        is_filled |= len(means) > 0
        if len(means) or any(published(column.task, label, column.name) for label in groups):
            frame[column.heading] = cells
    frame["Seeds"] = [str(len({each.seed for each in of}) or "–") for of in groups.values()]
    frame["Time"] = [duration(_seconds(of)) if of else "–" for of in groups.values()]
    notes = [*layout.notes, *(f"{full_name(label)}: {text}" for label, of in groups.items() if (text := _notes(of)))]
    return Table(layout.title, source, frame, notes) if is_filled else None


def column_means(column: Column, results: Iterable[Result], names: Sequence[str] = ()) -> pd.DataFrame:
    """Mean, standard error and number of seeds by label, for results of the column's task that have the measure."""
    rows = [(each.label, column.value(each, names)) for each in results if each.task == column.task]
    values = pd.DataFrame([row for row in rows if row[1] is not None], columns=["label", "value"])
    return values.groupby("label")["value"].agg(["mean", "sem", "count"])


def _cell(
    column: Column, label: str, results: Sequence[Result], means: pd.DataFrame, by_entropy: pd.DataFrame, compared: bool
) -> str:
    paper = published(column.task, label, column.name)
    ours, difference = "not run" if paper and not results else "–", "–"
    if label in means.index:
        mean, _, count = means.loc[label]
        ours = _shown(column, label, means)
        other = column.show(by_entropy.loc[label, "mean"]) if column.by_entropy else column.show(mean)
        ours += f" (by entropy {other})" if other != column.show(mean) else ""
        ours += f" (n={count:.0f})" if count != len({each.seed for each in results}) else ""
        if paper:
            gain = round(mean - paper[0], column.decimals) + 0.0
            difference = ("+" if gain > 0 else "") + column.show(gain)
    return f"{ours} / {column.show(*paper) if paper else '–'} / {difference}" if compared else ours


def _shown(column: Column, label: str, means: pd.DataFrame) -> str:
    """A mean with its standard error; bold if it is the best as it is shown, but not if all are equal."""
    mean, error, count = means.loc[label]
    text = column.show(mean, error if count > 1 else None)
    values = {round(each, column.decimals) for each in means["mean"]}
    best = {"higher": max, "lower": min}.get(column.better)
    is_best = best and len(values) > 1 and round(mean, column.decimals) == best(values)
    return f"**{text}**" if is_best else text


def _labels(layout: TableLayout, ours: Iterable[Result]) -> list[str]:
    """Our rows in the published order, and the other published rows; ensembles last."""
    labels = sorted({each.label for each in ours})
    tasks = [task for task in layout.tasks if task in PUBLISHED]
    order = [row for task in tasks for row in PUBLISHED[task]["rows"]]
    taken = {published_row(task, label) for task in tasks[:1] for label in labels}
    missing = [row for task in tasks[:1] for row in PUBLISHED[task]["rows"] if row not in taken]

    def place(label: str) -> tuple[bool, int]:
        row = next((name for task in tasks if (name := published_row(task, label))), None)
        return label.startswith("ensemble:"), order.index(row) if row else len(order)

    return sorted([*labels, *missing], key=place)


def _notes(results: Sequence[Result]) -> str:
    """Differences from the paper that a reader of the numbers must know."""
    tasks: dict[str, dict[str, None]] = {}
    for each in results:
        members = each.settings.get("method", {}).get("settings", {}).get("members")
        for note in (*([f"{len(members)} members"] if members else []), *each.notes):
            tasks.setdefault(note, {})[each.task.removeprefix("uci-")] = None
    everywhere = len({each.task for each in results})
    return "; ".join(note if len(of) == everywhere else f"{', '.join(of)}: {note}" for note, of in tasks.items())


_COMPARED: dict[str, tuple[str, tuple[Column, ...]]] = {
    "fashion-mnist": (
        "paper",
        (detection("fashion-mnist", "mnist", "MNIST"), detection("fashion-mnist", "notmnist", "notMNIST")),
    ),
    "cifar10": (
        "desk",
        (percent("cifar10", "accuracy_corrupted", "Accuracy, corrupted"), detection("cifar10", "svhn", "SVHN")),
    ),
    "rotated-mnist": ("paper", (Column("rotated-mnist", "nll_45plus", "NLL, > 45°", "lower"),)),
    "retina": ("desk", (percent("retina", "accuracy_referred_50", "Accuracy, 50% referred"),)),
    "reviews": ("paper", (Column("reviews", "nll_shifted", "NLL, shifted", "lower"),)),
}
_GROUPS = (("fsvi", "fsvi-refined", "fsvi-fixed-mean", "map", "mc-dropout"), ("ensemble:fsvi", "ensemble:map"))


def compare_like_with_like(results: Sequence[Result]) -> Table | None:
    """One FSVI network against one network of MAP and MC dropout, and an ensemble against an ensemble.

    FSVI has the context with the most seeds; of several, the task's default. With a fixed mean it has the default.
    """
    rows, contexts = {}, []
    for task, (profile, further) in _COMPARED.items():
        ours = [each for each in results if (each.task, each.profile) == (task, profile)]
        labels = {method: _most_seeds(ours, method, TASKS[task].context) for group in _GROUPS for method in group}
        name = TASKS[task].section.title
        contexts += [f"{name}: {full_name(labels[each])}" for each in ("fsvi", "ensemble:fsvi") if labels[each]]
        accuracy = percent(task, "accuracy", "Accuracy")
        for column in (accuracy, negative_log_likelihood(task), calibration_error(task), *further) if ours else ():
            means = column_means(column, ours)
            rows[f"{name}, {column.heading}"] = [
                _compared_cell(column, labels[method], means.loc[means.index.intersection([*map(labels.get, group)])])
                for group in _GROUPS
                for method in group
            ]
    if not rows:
        return None
    columns = [method_title(method) for group in _GROUPS for method in group]
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("Task, measure")
    return Table("Like with like", "", frame, contexts)


def _most_seeds(results: Sequence[Result], method: str, default: str | None) -> str:
    found = pd.Series([each.label for each in results if each.method == method], dtype=object).value_counts()
    return min(found.index, key=lambda label: (-found[label], label != f"{method} ({default})", label), default="")


def _compared_cell(column: Column, label: str, means: pd.DataFrame) -> str:
    if label not in means.index:
        return "not run"
    return f"{_shown(column, label, means)} ({means.loc[label, 'count']:.0f})"


def _seconds(results: Sequence[Result]) -> float:
    """Mean wall time per run, training and evaluation."""
    return sum(sum(each.seconds.values()) for each in results) / len(results)
