"""Models of tables: predictions for rows that were held out, what the columns give away, and what happens far away."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy import stats
from sklearn.base import clone

from fsvi.diagnosis.findings import Diagnosis, Finding, Level, listed
from fsvi.diagnosis.statistics import (
    LEAST,
    LEVELS,
    Array,
    HeldOut,
    check_calibration,
    check_order,
    check_useful,
    strongest_relation,
)
from fsvi.errors import InvalidInputError
from fsvi.tables import Table, TableEncoder, as_table

_PARTS, _LATER_PARTS = 5, 3
"""Parts of the rows, and how many of them, at the end, are held out in turn where rows are split by time."""
_ALL_PARTS_UP_TO = 2_000
"""With more rows, only one part is held out."""
_MOST_TRAIN, _MOST_TEST, _MOST_MOVED = 10_000, 5_000, 8_000
"""Rows to train on, to predict, and to move out of the data, counted once for each column."""
_CALIBRATION, _FEWEST_CALIBRATION = 0.15, 20
_REPEATED, _BY_CHANCE = 0.05, 0.1
"""The share of repeated rows that is worth a look; and the number of equal rows, expected from the frequencies of their
values, up to which equal rows are not called chance."""
_LEAK = 0.95
"""Share of the error that a column alone removes."""
_FAR = 8.0
_TOGETHER = {True: 0.85, False: 0.7}
"""What the uncertainty reaches with all columns far away: a share of the largest entropy (classes), or of the targets'
standard deviation (numbers)."""
_ALONE = {True: 0.3, False: 1.25}
"""The same with one column far away: a share of the largest entropy, or a multiple of the uncertainty on the data."""
_ID = re.compile(r"(?i:^|[^a-z])(?i:id|uuid|index|nr|no|key|rownames)$|[a-z](?:Id|ID|Key|Index)$")


def diagnose_table(model: Any, data: Sequence[Any], refit: bool, time: str | bool | None) -> Diagnosis:
    """Check a model of a table; see `fsvi.diagnose`."""
    table, y, weights = as_table(data[0]), np.asarray(data[1]), data[2] if len(data) > 2 else None
    if len(table) != len(y) or len(y) < 2 * _PARTS:
        raise InvalidInputError(f"data has {len(table)} rows and {len(y)} targets; at least {2 * _PARTS} are needed.")
    is_classes, is_fitted = hasattr(model, "predict_proba"), hasattr(model, "encoder_")
    if not refit and not is_fitted:
        raise InvalidInputError("refit=False measures the model itself, but it is not fitted: call fit first.")
    encoder = model.encoder_ if is_fitted else TableEncoder.learn(table, getattr(model, "columns", None))
    columns = [_Column(each, table) for each in encoder.columns]
    codes = np.unique(y, axis=0, return_inverse=True)[1].reshape(-1)
    rows, groups, repeated = _distinct(columns, codes, is_classes)
    timed, moments = (_moments(columns, len(y), time) if refit else None) or (None, None)
    splits = list(_splits(codes, rows, groups, moments, is_classes)) if refit else [(rows, rows)]
    if not splits:
        raise InvalidInputError("the rows cannot be split into training and later rows: check with time=False.")
    calibration = getattr(model, "calibration_", None)
    parts = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about rare values that only held-out rows have
        for kept, test in splits:
            if refit:
                own = None if weights is None else np.asarray(weights)[kept]
                model = train(clone(model), table.take(kept), y[kept], own, calibration)
            parts.append(_measure(model, table.take(test), y[test], y[kept]))
        far = _check_far(model, table.take(splits[-1][1]), 1.0 if is_classes else y.std(0), columns)
        inputs = encoder.transform(table.take(rows))
    seen, tested = HeldOut.joined(parts), np.concatenate([test for _, test in splits])
    targets = np.eye(codes.max() + 1)[codes[rows]] if is_classes else y[rows].reshape(len(rows), -1).astype(float)
    findings = [
        check_useful(seen, strongest_relation(inputs, targets, encoder.outputs)),
        check_calibration(seen),
        far,
        repeated,
        _check_leak(columns, rows, codes if is_classes else y.reshape(len(y), -1)[:, 0], is_classes),
        _check_idle(columns),
        check_order(seen, tested, y[tested]) if timed is None else None,
        _scope(len(tested), len(y), refit, timed),
    ]
    return Diagnosis(tuple(finding for finding in findings if finding is not None), seen.metrics)


def train(model: Any, table: Table, y: Array, weights: Array | None, calibration: Any) -> Any:
    """Fit a model and, with True or another calibration to repeat, calibrate it on a share of the rows."""
    num = round(_CALIBRATION * len(y)) if calibration else 0
    held_out, kept = np.split(np.random.default_rng(0).permutation(len(y)), [num * (num >= _FEWEST_CALIBRATION)])
    if hasattr(model, "predict_proba"):
        is_new = ~np.isin(y[held_out], y[kept])
        kept, held_out = np.append(kept, held_out[is_new]), held_out[~is_new]
    kept, held_out = np.sort(kept), np.sort(held_out)
    model.fit(table.take(kept), y[kept], *([] if weights is None else [weights[kept]]))
    if len(held_out):
        model.calibrate(table.take(held_out), y[held_out], getattr(calibration, "steps", None))
    return model


# Columns --------------------------------------------------------------------------------------------------------------


class _Column:
    """A column: the encoder's, which can parse further values; its values; and numbers, the same for equal values."""

    def __init__(self, source: Any, table: Table) -> None:
        self.source, self.name, self.is_category = source, str(source.name), source.kind == "category"
        self.values = source.parse(table)
        texts = np.array([str(value) for value in self.values.tolist()]) if self.is_category else self.values
        self.codes: Array = np.unique(texts, return_inverse=True)[1]
        self.is_constant = bool(self.codes.max() == 0)

    @property
    def is_id(self) -> bool:
        """Whether it numbers the rows, or is called an id and differs in every row."""
        num, x = len(self.values), self.values
        if self.source.kind != "number" or num != self.codes.max() + 1 or (x != x.round()).any():  # NaN differs
            return False
        return bool(np.ptp(x) == num - 1 or _ID.search(self.name))

    def moved(self, rows: Table, sign: int) -> Array:
        """Values of rows; with a sign, never seen, or moved by 8 standard deviations and more than their range."""
        values: Array = self.source.parse(rows)
        if self.is_category:
            return np.full(len(rows), "(never seen)", dtype=object) if sign else values
        known = self.values[~np.isnan(self.values)]
        if sign:
            values = values + sign * _FAR * max(known.std(), np.ptp(known) / 7)
        return values if self.source.kind == "number" else (values * 86_400e6).astype("datetime64[us]")


def _distinct(columns: Sequence[_Column], targets: Array, is_classes: bool) -> tuple[Array, Array, Finding]:
    """The first of equal rows, and for all rows the number of their set of equal columns.

    Rows of few categories are equal by chance; they stay.
    """
    num, used = len(targets), [column.codes for column in columns if not column.is_id] or [np.arange(len(targets))]
    expected = (num - 1) * np.exp(np.sum([np.log(_frequencies(codes)) for codes in used], axis=0))
    is_rare = expected < _BY_CHANCE if is_classes else expected * _frequencies(targets) < 1
    groups = np.unique(np.stack(used, 1), axis=0, return_inverse=True)[1].reshape(-1)
    groups = np.where(is_rare, groups, num + np.arange(num))
    rows = np.sort(np.unique(np.stack([groups, targets], 1), axis=0, return_index=True)[1])
    share = 1 - len(rows) / num
    sentence = f"{num - len(rows)} of {num} rows ({share:.1%}) repeat another row exactly; each was counted once."
    advice = "Find out why: repeated rows make a random test look better than it is." if share > _REPEATED else ""
    return rows, groups, Finding("duplicates", "care" if advice else "ok", sentence, advice, {"share": share})


def _frequencies(codes: Array) -> Array:
    return np.bincount(codes)[codes] / len(codes)


def _check_leak(columns: Sequence[_Column], rows: Array, y: Array, is_classes: bool) -> Finding:
    """Sort rows by each column alone and compare the targets of neighbors: if it gives them away, they are equal."""
    order = np.random.default_rng(0).permutation(rows)  # equal values in random order
    skills = {
        column.name: _skill(y[order[np.argsort(column.codes[order], kind="stable")]], is_classes)
        for column in columns
        if not column.is_constant
    }
    name, best = max(skills.items(), key=lambda item: item[1], default=("", 0.0))
    if best < _LEAK:
        sentence = f"No column predicts the target nearly alone; {name!r} removes {max(best, 0):.0%} of the error."
        return Finding("leak", "ok", sentence, numbers={"skill": best})
    sentence = f"Column {name!r} alone predicts the target nearly perfectly: it removes {best:.1%} of the error."
    advice = "Leave it out if it is only known together with the target."
    return Finding("leak", "care", sentence, advice, {"skill": best})


def _skill(y: Array, is_classes: bool) -> float:
    """1 if neighbors have equal targets, 0 if they are as different as any two rows."""
    if not is_classes:
        ranks = stats.rankdata(y)
        return float(1 - 0.5 * (np.diff(ranks) ** 2).mean() / max(ranks.var(), LEAST))
    counts = np.bincount(y)
    borders = max(int((counts >= _PARTS).sum()) - 1, 0)  # of blocks, one for each class that is not very rare
    changes = max(int((y[1:] != y[:-1]).sum()) - borders, 0) / (len(y) - 1)
    return float(1 - changes / max(1 - ((counts / len(y)) ** 2).sum(), LEAST))


def _check_idle(columns: Sequence[_Column]) -> Finding:
    """Columns that can teach nothing."""
    ids = [column.name for column in columns if column.is_id]
    if not ids:
        return Finding("idle columns", "ok", "No column only identifies rows.")
    advice = "Leave out what only identifies rows: new rows have values outside of the training data there."
    return Finding("idle columns", "care", f"Only identifying rows: {listed(ids)}.", advice)


# Rows to hold out -----------------------------------------------------------------------------------------------------


def _moments(columns: Sequence[_Column], num: int, time: str | bool | None) -> tuple[str, Array] | None:
    """The column that says when each row happened, if there is one, and its values."""
    if time is False:
        return None
    usable = {c.name: c.values for c in columns if c.source.kind == "date" and not c.is_constant}
    if isinstance(time, str):
        numbers = {c.name: c.values for c in columns if not c.is_category}
        usable = {name: values for name, values in {"rows": np.arange(float(num)), **numbers}.items() if name == time}
        if not usable:
            raise InvalidInputError(f'time={time!r} must be a column of dates or numbers, "rows", or False.')
    for name, values in usable.items():
        return name, np.where(np.isnan(values), np.nanmedian(values), values)
    return None


def _splits(
    targets: Array, rows: Array, groups: Array, moments: Array | None, is_classes: bool
) -> Iterator[tuple[Array, Array]]:
    """Rows to train on and to hold out: all parts in turn, or only the last one of large tables."""
    generator = np.random.default_rng(0)
    wanted = _PARTS if len(rows) <= _ALL_PARTS_UP_TO else 1
    if moments is None:
        _, first, index = np.unique(groups[rows], return_index=True, return_inverse=True)
        part = np.empty(len(first), dtype=np.int64)
        part[np.lexsort((generator.random(len(first)), targets[rows][first]))] = np.arange(len(first)) % _PARTS
        parts = part[index]
    else:
        wanted = min(wanted, _LATER_PARTS)
        cuts = np.quantile(moments[rows], np.arange(1, _PARTS + 1) / (_PARTS + 1))
        parts = np.searchsorted(cuts, moments[rows], side="left") - 1  # −1 is for training only
    for at in range(_PARTS - wanted, _PARTS):
        kept, test = rows[parts != at if moments is None else parts < at], rows[parts == at]
        kept, test = generator.permutation(kept)[:_MOST_TRAIN], generator.permutation(test)[:_MOST_TEST]
        if is_classes:
            test = test[np.isin(targets[test], targets[kept])]
        if len(kept) >= _PARTS and len(test) > 1:
            yield np.sort(kept), np.sort(test)


# Predictions ----------------------------------------------------------------------------------------------------------


def _measure(model: Any, table: Table, y: Array, known: Array) -> HeldOut:
    """What the model says about held-out rows, next to a guess that knows the targets of the training rows."""
    if hasattr(model, "predict_proba"):
        labels, known = (np.searchsorted(model.classes_, each) for each in (y, known))
        return HeldOut.of_classes(model.predict_proba(table), labels, known)
    y, known = (np.asarray(each, dtype=np.float64).reshape(len(each), -1) for each in (y, known))
    intervals = [model.predict_interval(table, 1 - level) for level in LEVELS]
    return HeldOut.of_numbers(model.predictive(table), y, known, intervals)


def _scope(num_test: int, num: int, refit: bool, timed: str | None) -> Finding:
    by = "models trained in the same way on the other rows" if refit else "the model itself"
    if timed is not None:
        by = (
            f"models trained on earlier rows (in order of time, by {timed!r}; time=False or --time no splits at random)"
        )
    sentence = (
        f"Measured on {num_test} of {num} rows by {by}. 'useful' and 'calibration' hold only for rows like these; "
        "'far' is about other rows."
    )
    advice = "model.check(rows) says whether new rows are like them."
    return Finding("scope" if timed is None else "time", "ok", sentence, advice)


# Away from the data ---------------------------------------------------------------------------------------------------


def _check_far(model: Any, table: Table, scale: Any, columns: Sequence[_Column]) -> Finding:
    """Move columns of held-out rows out of the data: all together, and one by one. Constant columns stay."""
    names = [column.name for column in columns if not column.is_constant]
    moves, signs = [[], names, *([name] for name in names)], (1, -1)
    num = min(len(table), max(10, min(200, _MOST_MOVED // len(moves))))
    rows = table.take(np.linspace(0, len(table) - 1, num).round().astype(int))
    joined = {}
    for column in columns:
        versions = {sign: column.moved(rows, sign) for sign in ((0, *signs) if column.name in names else (0,))}
        parts = [versions[sign * (column.name in move)] for move in moves for sign in signs]
        joined[column.name] = np.concatenate(parts)
    moved = Table(joined, np.tile(rows.lines, len(moves) * len(signs)))
    levels = _uncertainty(model, moved, scale).reshape(len(moves), len(signs), num).mean(2).min(1)
    on_data, together, alone = levels[0], levels[1], dict(zip(names, levels[2:], strict=True))
    is_classes = hasattr(model, "predict_proba")
    needed, needed_together = _ALONE[is_classes] * (1.0 if is_classes else on_data), _TOGETHER[is_classes]
    missed, least = [name for name in names if alone[name] < needed], min(names, key=lambda name: alone[name])
    unit = "of the largest entropy" if is_classes else "of the targets' standard deviation"
    sentence = (
        f"The uncertainty is {on_data:.2f} {unit} on the data; {together:.2f} with all columns {_FAR:g} standard "
        f"deviations away ({needed_together:g} is needed); and {alone[least]:.2f} or more with one column so far away "
        f"({least!r}; {needed:.2f} is needed{f' and missed by {listed(missed)}' * bool(missed)})."
    )
    numbers = {"on_data": on_data, "together": together, "least": alone[least], "needed": needed}
    level: Level = "care" if missed or together < needed_together else "ok"
    return Finding("far", level, sentence, numbers={name: float(value) for name, value in numbers.items()})


def _uncertainty(model: Any, rows: Table, scale: Any) -> Array:
    """The entropy as a share of the largest, or the standard deviation in units of the targets', of each row."""
    if hasattr(model, "predict_proba"):
        p = np.clip(model.predict_proba(rows), LEAST, 1.0)
        shares: Array = -(p * np.log(p)).sum(1) / math.log(p.shape[1])
        return shares
    return (model.predict(rows, return_std=True)[1] / scale).reshape(len(rows), -1).mean(1)
