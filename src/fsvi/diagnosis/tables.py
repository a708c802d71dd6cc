"""Models of tables: predictions for rows that were held out, what the columns give away, and what happens far away."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import stats
from sklearn.base import clone
from sklearn.model_selection import cross_val_predict
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from fsvi.diagnosis.findings import Diagnosis, Finding
from fsvi.diagnosis.statistics import (
    Array,
    HeldOut,
    check_calibration,
    check_order,
    check_useful,
    class_promises,
    interval_promises,
    strongest_relation,
)
from fsvi.errors import InvalidInputError
from fsvi.tables import Table, TableEncoder, as_table

_PARTS, _LATER_PARTS = 5, 3
"""Parts of the rows, and how many of them, at the end, are held out in turn where rows are split by time."""
_ALL_PARTS_UP_TO = 2_000
"""With more rows, only one part is held out."""
_MOST_TRAIN, _MOST_TEST, _MOST_MOVED, _MOST_LEAK = 10_000, 5_000, 200, 2_000
_FEWEST_CALIBRATION = 20
_SWAPS = 20
_LEAST = 1e-12
_REPEATED = 0.05
"""Share of repeated rows that is worth a look."""
_BY_CHANCE = 0.1
"""Rows may be equal by chance if that many equal ones are expected from the frequencies of their values."""
_LEAK = 0.95
"""Share of the error that a column alone removes."""
_FAR = 8.0
_TOGETHER = {True: 0.85, False: 0.7}
"""What the uncertainty reaches with all columns far away: a share of the largest entropy (classes), or of the targets'
standard deviation (numbers)."""
_ALONE = {True: 0.3, False: 1.25}
"""The same with one column far away: a share of the largest entropy, or a multiple of the uncertainty on the data."""
_LISTED = 3
_REFERRED = 10


@dataclass(frozen=True)
class _Column:
    source: Any
    """The encoder's column, which can parse further values."""
    values: Array

    @property
    def name(self) -> str:
        return str(self.source.name)

    @property
    def kind(self) -> str:
        return str(self.source.kind)

    @property
    def known(self) -> Array:
        return self.values[[value is not None and value == value for value in self.values.tolist()]]

    @property
    def codes(self) -> Array:
        """Whole numbers, the same for equal values."""
        values = self.values if self.kind != "category" else np.array([str(value) for value in self.values.tolist()])
        codes: Array = np.unique(values, return_inverse=True)[1]
        return codes

    @property
    def is_constant(self) -> bool:
        return len(np.unique(self.codes)) < 2

    @property
    def is_id(self) -> bool:
        """Whether it numbers the rows, or is called an id and differs in every row."""
        if self.kind != "number" or len(self.known) < len(self.values) or len(self.values) < 10:
            return False
        values = np.sort(self.known)
        named = {"id", "index", "nr", "no", "key", "rownames"} & set(self.name.lower().replace("_", " ").split())
        is_whole = bool((values == values.round()).all())
        return is_whole and bool((np.diff(values) == 1).all() or (named and (np.diff(values) > 0).all()))


@dataclass(frozen=True)
class _Rows:
    table: Table
    y: Array
    weights: Array | None
    order: Array
    """The place of each row in the file."""
    groups: Array
    """Rows with equal numbers have equal columns."""

    def take(self, index: Array) -> _Rows:
        weights = None if self.weights is None else self.weights[index]
        return _Rows(self.table.take(index), self.y[index], weights, self.order[index], self.groups[index])


def train(model: Any, table: Table, y: Array, weights: Array | None, calibrate: float = 0.0) -> Any:
    """Fit a model and calibrate it with a share of the rows.

    Args:
        model: The classifier or regressor.
        table: The rows.
        y: Their labels or targets.
        weights: How many times each row counts, or None.
        calibrate: The share of rows that are not for training but for `model.calibrate`; 0 leaves that out.
    """
    order = np.random.default_rng(0).permutation(len(y))
    num = round(calibrate * len(y))
    held_out, kept = np.split(order, [num if num >= _FEWEST_CALIBRATION else 0])
    if hasattr(model, "predict_proba"):
        is_new = ~np.isin(y[held_out], y[kept])
        kept, held_out = np.append(kept, held_out[is_new]), held_out[~is_new]
    kept, held_out = np.sort(kept), np.sort(held_out)
    model.fit(table.take(kept), y[kept], *([] if weights is None else [weights[kept]]))
    return model.calibrate(table.take(held_out), y[held_out]) if len(held_out) else model


def diagnose_table(
    model: Any, data: Sequence[Any], folds: int | None, time: str | bool | None, calibrate: float = 0.0
) -> Diagnosis:
    """Check a model of a table; see `fsvi.diagnose`."""
    table, y = as_table(data[0]), np.asarray(data[1])
    weights = np.asarray(data[2], dtype=np.float64) if len(data) > 2 and data[2] is not None else None
    if len(table) != len(y) or len(y) < 2 * _PARTS:
        raise InvalidInputError(
            f"data has {len(table)} rows and {len(y)} targets: at least {2 * _PARTS} of each are needed."
        )
    is_classes = hasattr(model, "predict_proba")
    scale = 1.0 if is_classes else np.asarray(y, dtype=np.float64).std(0)
    is_fitted = hasattr(model, "encoder_")
    if folds == 0 and not is_fitted:
        raise InvalidInputError(
            "folds=0 measures the model itself, but it is not fitted: call fit, or leave folds out."
        )
    encoder = model.encoder_ if is_fitted else TableEncoder.learn(table, getattr(model, "columns", None))
    columns = [_Column(c, c.parse(table.columns[c.name], table.lines)) for c in encoder.columns]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about rare values that only held-out rows have
        rows = _Rows(table, y, weights, np.arange(len(y)), np.arange(len(y)))
        rows, repeated = _distinct(rows, columns, is_classes)
        moments, timed = _moments(columns, rows, time) if folds != 0 else (None, None)
        splits = [(None, np.arange(len(rows.y)))] if folds == 0 else list(_splits(rows, is_classes, moments, folds))
        if not splits:
            raise InvalidInputError("the rows cannot be split into training and later rows: check with time=False.")
        parts = []
        for kept, test in splits:
            if kept is not None:
                chosen = rows.take(kept)
                model = train(clone(model), chosen.table, chosen.y, chosen.weights, calibrate)
            parts.append(_measure(model, rows.take(test), rows.y if kept is None else rows.y[kept]))
        found = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        far, single, moved = _far_away(model, scale, rows.take(splits[-1][1]).table, encoder, columns)
    promises = (
        class_promises(found["confidence"], found["loss"] == 0)
        if is_classes
        else interval_promises({0.5: found["in 50%"], 0.95: found["in 95%"]})
    )
    held_out = HeldOut(**{name: found[name] for name in HeldOut.__dataclass_fields__})
    targets = (rows.y[:, None] == np.unique(rows.y)).astype(float) if is_classes else rows.y.reshape(len(rows.y), -1)
    relation = strongest_relation(encoder.transform(rows.table, warn=False), targets, encoder.outputs)
    findings = [
        check_useful(held_out, relation, _score(found, is_classes)),
        check_calibration(promises),
        far,
        single,
        repeated,
        _leak(columns, y, is_classes),
        _idle(columns),
        timed or check_order(held_out, found["order"], found["y"]),
        _scope(len(found["loss"]), len(y), folds, timed is not None),
    ]
    tables = {**_referral(found, is_classes, table.lines), "When one column leaves the data": moved}
    return Diagnosis(tuple(f for f in findings if f is not None), _metrics(found, is_classes), tables)


# Rows -----------------------------------------------------------------------------------------------------------------


def _distinct(rows: _Rows, columns: Sequence[_Column], is_classes: bool) -> tuple[_Rows, Finding]:
    """Each row once, and a number for each set of equal columns. Rows that may be equal by chance are left alone."""
    used = [column.codes for column in columns if not column.is_id] or [rows.order]
    targets = np.unique(rows.y, axis=0, return_inverse=True)[1].reshape(-1)
    expected = (len(rows.y) - 1) * np.exp(sum(np.log(_frequencies(codes)) for codes in used))
    is_rare = expected < _BY_CHANCE if is_classes else expected * _frequencies(targets) < 1
    groups = np.unique(np.stack(used, 1), axis=0, return_inverse=True)[1].reshape(-1)
    groups = np.where(is_rare, groups, len(groups) + rows.order)
    first = np.sort(np.unique(np.stack([groups, targets], 1), axis=0, return_index=True)[1])
    share = 1 - len(first) / len(rows.y)
    kept = _Rows(rows.table, rows.y, rows.weights, rows.order, groups).take(first)
    if len(first) == len(rows.y):
        return kept, Finding("duplicates", "ok", "No row repeats another.", numbers={"share": 0.0})
    count = f"{len(rows.y) - len(first)} of {len(rows.y)} rows ({share:.1%})"
    sentence = f"{count} repeat another row exactly; each was counted once."
    advice = "Find out why: repeated rows make a random test look better than it is." if share > _REPEATED else ""
    return kept, Finding("duplicates", "care" if advice else "ok", sentence, advice, {"share": share})


def _frequencies(codes: Array) -> Array:
    return np.bincount(codes)[codes] / len(codes)


def _moments(columns: Sequence[_Column], rows: _Rows, time: str | bool | None) -> tuple[Array | None, Finding | None]:
    """When each row happened, if it is known."""
    dates = [column for column in columns if column.kind == "date" and not column.is_constant]
    if time == "rows":
        sentence = "As asked, the model was measured on rows below those that it was trained on."
        return rows.order.astype(float), Finding("time", "ok", sentence)
    if isinstance(time, str):
        dates = [column for column in columns if column.name == time and column.kind != "category"]
        if not dates:
            raise InvalidInputError(f'time={time!r} must be a column of dates or numbers, "rows", or False.')
    if time is False or not dates:
        return None, None
    values = dates[0].values[rows.order]
    sentence = f"The model was measured on later rows than those that it was trained on, by column {dates[0].name!r}."
    middle = np.median(values[~np.isnan(values)])
    return np.where(np.isnan(values), middle, values), Finding("time", "ok", sentence, "time=False splits at random.")


def _splits(rows: _Rows, is_classes: bool, moments: Array | None, folds: int | None) -> Iterator[tuple[Array, Array]]:
    """Rows to train on and to hold out: all parts in turn, or only the last one of large tables."""
    generator = np.random.default_rng(0)
    num = len(rows.y)
    wanted = min(folds or (_PARTS if num <= _ALL_PARTS_UP_TO else 1), _PARTS)
    if moments is None:
        groups, first = np.unique(rows.groups, return_index=True)
        first_y = np.unique(rows.y, axis=0, return_inverse=True)[1].reshape(-1)[first]
        order = np.lexsort((generator.random(len(groups)), first_y))  # similar targets go to different parts
        part = np.empty(len(groups), dtype=np.int64)
        part[order] = (np.arange(len(groups)) + generator.integers(_PARTS)) % _PARTS
        parts = part[np.searchsorted(groups, rows.groups)]
    else:
        cuts = np.quantile(moments, np.arange(1, _PARTS + 1) / (_PARTS + 1))
        parts = np.searchsorted(cuts, moments, side="left") - 1  # −1 is for training only
    if moments is not None:
        wanted = min(wanted, _LATER_PARTS)
    for at in range(_PARTS - wanted, _PARTS):
        train = np.flatnonzero(parts != at if moments is None else parts < at)
        test = np.flatnonzero(parts == at)
        train, test = (
            np.sort(generator.permutation(some)[:most]) for some, most in ((train, _MOST_TRAIN), (test, _MOST_TEST))
        )
        if is_classes:
            test = test[np.isin(rows.y[test], rows.y[train])]
        if len(train) >= _PARTS and len(test):
            yield train, test


# Predictions ----------------------------------------------------------------------------------------------------------


def _measure(model: Any, rows: _Rows, known: Array) -> dict[str, Array]:
    """What the model says about held-out rows, next to a guess that knows the targets of the training rows."""
    measure = _measure_classes if hasattr(model, "predict_proba") else _measure_numbers
    return {**measure(model, rows.table, rows.y, known), "order": rows.order}


def _measure_classes(model: Any, table: Table, y: Array, known: Array) -> dict[str, Array]:
    p = np.clip(model.predict_proba(table), _LEAST, 1.0)
    at, index = np.arange(len(y)), np.searchsorted(model.classes_, y)
    shares = (known[:, None] == model.classes_).sum(0) + 1.0
    shares /= shares.sum()
    others = (p.sum(0) - p) / max(len(y) - 1, 1)
    return {
        "log_prob": np.log(p[at, index]),
        "swapped": np.log(np.maximum(others[at, index], _LEAST)),
        "guess": np.log(shares[index]),
        "loss": (p.argmax(1) != index).astype(float),
        "guess_loss": (shares.argmax() != index).astype(float),
        "residuals": (np.eye(p.shape[1])[index] - p)[:, np.argsort(-shares, kind="stable")[:2]],
        "confidence": p.max(1),
        "uncertainty": -(p * np.log(p)).sum(1),
        "y": index,
        "predicted": model.classes_[p.argmax(1)].astype(object),
        "actual": y.astype(object),
    }


def _measure_numbers(model: Any, table: Table, y: Array, known: Array) -> dict[str, Array]:
    y, known = (np.asarray(values, dtype=np.float64).reshape(len(values), -1) for values in (y, known))
    prediction, targets = model.predictive(table), torch.as_tensor(y)
    own = _log_prob(prediction, targets)
    shifts = sorted({max(1, round(len(y) * step / (_SWAPS + 1))) for step in range(1, _SWAPS + 1)})
    other = [np.roll(_log_prob(prediction, targets.roll(-shift, 0)), shift) for shift in shifts]
    mean, scale = known.mean(0), np.maximum(known.std(0), 1e-300)
    center, std = (
        np.asarray(part, dtype=np.float64).reshape(y.shape) for part in model.predict(table, return_std=True)
    )
    ends = {level: _interval(model, table, level, y.shape) for level in (0.5, 0.95)}
    return {
        "log_prob": own,
        "swapped": np.logaddexp.reduce(other, axis=0) - math.log(len(other)),
        "guess": stats.norm.logpdf(y, mean, scale).sum(1),
        "loss": ((y - center) ** 2).mean(1),
        "guess_loss": ((y - mean) ** 2).mean(1),
        "residuals": (y - center) / scale,
        **{f"in {level:.0%}": (low <= y) & (y <= high) for level, (low, high) in ends.items()},
        "uncertainty": (std / scale).mean(1),
        "y": y,
        "predicted": center[:, 0],
        "low": ends[0.95][0][:, 0],
        "high": ends[0.95][1][:, 0],
        "actual": y[:, 0],
    }


def _log_prob(prediction: Any, y: torch.Tensor) -> Array:
    return np.maximum(np.asarray(prediction.log_prob(y), dtype=np.float64), -1e6)


def _interval(model: Any, table: Table, level: float, shape: tuple[int, ...]) -> tuple[Array, Array]:
    low, high = (np.asarray(end).reshape(shape) for end in model.predict_interval(table, 1 - level))
    return low, high


def _score(found: Mapping[str, Array], is_classes: bool) -> str:
    own, guess = float(found["loss"].mean()), float(found["guess_loss"].mean())
    if is_classes:
        right = f"It is right for {1 - own:.1%} of {len(found['loss'])} rows"
        return f"{right}; always guessing the most frequent class, {1 - guess:.1%}."
    return f"Its typical error is {shown(math.sqrt(own))}; always guessing the mean, {shown(math.sqrt(guess))}."


def _metrics(found: Mapping[str, Array], is_classes: bool) -> dict[str, float]:
    names = ("accuracy", "guess_accuracy") if is_classes else ("rmse", "guess_rmse")
    losses = [float(found[name].mean()) for name in ("loss", "guess_loss")]
    scores = [1 - loss if is_classes else math.sqrt(loss) for loss in losses]
    nll = {"nll": -float(found["log_prob"].mean()), "guess_nll": -float(found["guess"].mean())}
    coverage = {} if is_classes else {f"coverage_{n}": float(found[f"in {n}%"].mean()) for n in (50, 95)}
    return {"rows": float(len(found["loss"])), **dict(zip(names, scores, strict=True)), **nll, **coverage}


def _referral(found: Mapping[str, Array], is_classes: bool, lines: Array) -> dict[str, list[dict[str, Any]]]:
    """The error among the rows that are kept, and the rows that the model is least sure of."""
    order = np.argsort(found["uncertainty"], kind="stable")
    kept = []
    for tenth in range(0, 10, 2):
        error = float(found["loss"][order[: max(1, round(len(order) * (1 - tenth / 10)))]].mean())
        kept.append({"referred": f"{tenth * 10}%", "error": f"{error:.1%}" if is_classes else shown(math.sqrt(error))})
    rows = []
    for at in order[::-1][:_REFERRED]:
        row: dict[str, Any] = {"line": int(lines[int(found["order"][at])])}
        if is_classes:
            row |= {"predicted": str(found["predicted"][at]), "probability": f"{found['confidence'][at]:.0%}"}
            row["actual"] = str(found["actual"][at])
        else:
            row |= {"predicted": shown(found["predicted"][at]), "actual": shown(found["actual"][at])}
            row["95% interval"] = f"{shown(found['low'][at])} to {shown(found['high'][at])}"
        rows.append(row)
    return {"The error among the others when the least sure rows are referred": kept, "The least sure rows": rows}


def shown(value: float) -> str:
    """A number for people: 16,740 and not 1.674e+04."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"


# Columns --------------------------------------------------------------------------------------------------------------


def _leak(columns: Sequence[_Column], y: Array, is_classes: bool) -> Finding:
    """Predict the target from each column alone, with a tree and, for numbers, by rank."""
    chosen = np.random.default_rng(0).permutation(len(y))[:_MOST_LEAK]
    targets = (
        np.unique(y, return_inverse=True)[1] if is_classes else np.asarray(y, dtype=float).reshape(len(y), -1)[:, 0]
    )
    targets = targets[chosen]
    skills = {column.name: _skill(column, targets, chosen, is_classes) for column in columns if not column.is_constant}
    name, best = max(skills.items(), key=lambda item: item[1], default=("", 0.0))
    numbers = {"skill": best}
    if best < _LEAK:
        removed = f"{name!r}, the best, removes {max(best, 0.0):.0%} of the error"
        sentence = f"No column predicts the target nearly alone; {removed}."
        return Finding("leak", "ok", sentence, numbers=numbers)
    sentence = (
        f"Column {name!r} alone predicts the target nearly perfectly: it removes {best:.1%} of the error of guessing."
    )
    return Finding("leak", "care", sentence, "Leave it out if it is only known together with the target.", numbers)


def _skill(column: _Column, y: Array, chosen: Array, is_classes: bool) -> float:
    x = column.values[chosen] if column.kind != "category" else column.codes[chosen]
    x = np.where(np.isnan(x.astype(float)), -1e9, x.astype(float))[:, None]
    leaf = max(2, len(y) // 200)
    tree = (DecisionTreeClassifier if is_classes else DecisionTreeRegressor)(min_samples_leaf=leaf, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about rare classes
        predicted = cross_val_predict(tree, x, y, cv=3)
    if is_classes:
        return float(1 - (predicted != y).mean() / max(1 - np.bincount(y).max() / len(y), _LEAST))
    by_tree = 1 - ((predicted - y) ** 2).mean() / max(y.var(), 1e-300)
    rank = 0.0 if column.kind == "category" else float(np.nan_to_num(stats.spearmanr(x[:, 0], y).statistic)) ** 2
    return max(float(by_tree), rank)


def _idle(columns: Sequence[_Column]) -> Finding:
    """Columns that can teach nothing."""
    ids = [column.name for column in columns if column.is_id]
    constant = [column.name for column in columns if column.is_constant]
    sentences = [f"{_listed(ids)} only number{'s' * (len(ids) == 1)} the rows."] if ids else []
    sentences += (
        [f"{_listed(constant)} ha{'s' if len(constant) == 1 else 've'} one value in all rows."] if constant else []
    )
    numbers = {"ids": float(len(ids)), "constant": float(len(constant))}
    if not sentences:
        return Finding(
            "idle columns", "ok", "No column numbers the rows or has the same value in all of them.", numbers=numbers
        )
    return Finding("idle columns", "care" if ids else "ok", " ".join(sentences), "Leave them out.", numbers)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"Column{'s' * (len(names) > 1)} {', '.join(map(repr, names[:_LISTED]))}{more}"


def _scope(num_test: int, num: int, folds: int | None, is_later: bool) -> Finding:
    others = "models trained in the same way on " + ("earlier rows" if is_later else "the other rows")
    sentence = (
        f"Measured on {num_test} of {num} rows by {'the model itself' if folds == 0 else others}. 'useful' and "
        "'calibration' hold only for rows like these; 'far' and 'single columns' are about other rows."
    )
    return Finding("scope", "ok", sentence, "model.check(rows) says whether new rows are like them.")


# Far away -------------------------------------------------------------------------------------------------------------


def _far_away(
    model: Any, scale: Any, table: Table, encoder: Any, columns: Sequence[_Column]
) -> tuple[Finding | None, Finding | None, list[dict[str, str]]]:
    """Move columns of held-out rows out of the data: all together, and one by one. Constant columns stay."""
    is_classes = hasattr(model, "predict_proba")
    rows = table.take(np.linspace(0, len(table) - 1, min(len(table), _MOST_MOVED)).round().astype(int))
    movable = [column for column in columns if not column.is_constant]
    if not movable:
        return None, None, []
    on_data = _uncertainty(model, scale, rows)
    together = min(_uncertainty(model, scale, _moved(rows, movable, sign)) for sign in (1.0, -1.0))
    unit = "of the largest entropy" if is_classes else "of the targets' standard deviation"
    bar = _TOGETHER[is_classes]
    reached = f"the uncertainty is {together:.2f} {unit}; on the data {on_data:.2f}"
    sentence = f"With all columns {_FAR:g} standard deviations away, {reached}."
    numbers = {"on_data": on_data, "together": together, "needed": bar}
    advice = f"At least {bar:g} is needed: use the method 'fsvi'."
    far = (
        Finding("far", "ok", sentence, "", numbers)
        if together >= bar
        else Finding("far", "care", sentence, advice, numbers)
    )
    needed = _ALONE[is_classes] * (1.0 if is_classes else on_data)
    alone = {
        column.name: min(
            _uncertainty(model, scale, _moved(rows, [column], sign))
            for sign in ((1.0,) if column.kind == "category" else (1.0, -1.0))
        )
        for column in movable
    }
    missed = [name for name, level in alone.items() if level < needed]
    reached = f"the uncertainty is at least {min(alone.values()):.2f} {unit}; {needed:.2f} is needed"
    sentence = f"With one column far away, {reached}."
    if missed:
        sentence += f" It is less for {_listed(missed).lower()}."
    numbers = {"least": min(alone.values()), "needed": needed, "missed": float(len(missed))}
    single = Finding("single columns", "care" if missed else "ok", sentence, "", numbers)
    described = {column.name: column for column in encoder.columns}
    moved = [
        {
            "column": name,
            "in training": described[name].describe(),
            "uncertainty far away": f"{level:.2f}{' (stays sure)' * (name in missed)}",
        }
        for name, level in sorted(alone.items(), key=lambda item: item[1])
    ]
    return far, single, moved


def _moved(rows: Table, columns: Sequence[_Column], sign: float) -> Table:
    """Numbers and dates beyond the data, by 8 standard deviations or more than their range; categories never seen."""
    changed = dict(rows.columns)
    for column in columns:
        if column.kind == "category":
            changed[column.name] = np.full(len(rows), "(never seen)", dtype=object)
            continue
        known = column.known
        step = sign * _FAR * max(known.std(), np.ptp(known) / 7)
        values = column.source.parse(rows.columns[column.name], rows.lines) + step
        changed[column.name] = values if column.kind == "number" else _dates(values)
    return Table(changed, rows.lines)


def _dates(days: Array) -> Array:
    return np.where(np.isnan(days), np.nan, days * 86_400e6).astype("datetime64[us]")


def _uncertainty(model: Any, scale: float, rows: Table) -> float:
    """The mean uncertainty: the entropy as a share of the largest, or standard deviations in units of the targets'."""
    if hasattr(model, "predict_proba"):
        p = np.clip(model.predict_proba(rows), _LEAST, 1.0)
        return float(-(p * np.log(p)).sum(1).mean() / math.log(p.shape[1]))
    return float(np.mean(model.predict(rows, return_std=True)[1] / scale))
