"""Models of tables: predictions for rows that were held out, what the columns give away, and what happens far away."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy import stats
from sklearn.base import clone
from sklearn.model_selection import cross_val_predict
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from fsvi.diagnosis.findings import Diagnosis, Finding, shown
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
_FEWEST_CALIBRATION, _SWAPS, _REFERRED, _LISTED = 20, 20, 10, 3
_LEAST = 1e-12
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
_IDS = {"id", "index", "nr", "no", "key", "rownames"}


def diagnose_table(
    model: Any, data: Sequence[Any], folds: int | None, time: str | bool | None, calibrate: float = 0.0
) -> Diagnosis:
    """Check a model of a table; see `fsvi.diagnose`."""
    table, y, weights = as_table(data[0]), np.asarray(data[1]), data[2] if len(data) > 2 else None
    if len(table) != len(y) or len(y) < 2 * _PARTS:
        raise InvalidInputError(f"data has {len(table)} rows and {len(y)} targets; at least {2 * _PARTS} are needed.")
    is_classes, is_fitted = hasattr(model, "predict_proba"), hasattr(model, "encoder_")
    if folds == 0 and not is_fitted:
        raise InvalidInputError("folds=0 measures the model itself, but it is not fitted: call fit or leave folds out.")
    encoder = model.encoder_ if is_fitted else TableEncoder.learn(table, getattr(model, "columns", None))
    columns = [_Column(each, each.parse(table.columns[each.name], table.lines)) for each in encoder.columns]
    rows, groups, repeated = _distinct(columns, y, is_classes)
    moments, timed = (None, None) if folds == 0 else _moments(columns, len(y), time)
    splits = [(rows, rows)] if folds == 0 else list(_splits(y, rows, groups, moments, is_classes, folds))
    if not splits:
        raise InvalidInputError("the rows cannot be split into training and later rows: check with time=False.")
    measure = _measure_classes if is_classes else _measure_numbers
    parts = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about rare values that only held-out rows have
        for kept, test in splits:
            if folds != 0:
                own = None if weights is None else np.asarray(weights)[kept]
                model = train(clone(model), table.take(kept), y[kept], own, calibrate)
            parts.append({**measure(model, table.take(test), y[test], y[kept]), "row": test})
        found = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        away = _check_away(model, table.take(splits[-1][1]), 1.0 if is_classes else y.std(0), columns)
        inputs = encoder.transform(table.take(rows))
    held_out = HeldOut(**{name: found[name] for name in HeldOut.__dataclass_fields__})
    targets = (y[rows, None] == np.unique(y)).astype(float) if is_classes else y[rows].reshape(len(rows), -1)
    findings = [
        check_useful(held_out, strongest_relation(inputs, targets, encoder.outputs), _score(found, is_classes)),
        check_calibration(_promises(found, is_classes)),
        *away,
        repeated,
        _check_leak(columns, y, is_classes),
        _check_idle(columns),
        timed or check_order(held_out, found["row"], y[found["row"]]),
        _scope(len(found["row"]), len(y), folds == 0, timed is not None),
    ]
    tables = {**_referral(found, is_classes, table.lines), "Columns": [column.described() for column in columns]}
    return Diagnosis(tuple(f for f in findings if f is not None), _metrics(found, is_classes), tables)


def train(model: Any, table: Table, y: Array, weights: Array | None, calibrate: float = 0.0) -> Any:
    """Fit a model and calibrate it with a share of the rows."""
    num = round(calibrate * len(y))
    held_out, kept = np.split(np.random.default_rng(0).permutation(len(y)), [num * (num >= _FEWEST_CALIBRATION)])
    if hasattr(model, "predict_proba"):
        is_new = ~np.isin(y[held_out], y[kept])
        kept, held_out = np.append(kept, held_out[is_new]), held_out[~is_new]
    kept, held_out = np.sort(kept), np.sort(held_out)
    model.fit(table.take(kept), y[kept], *([] if weights is None else [weights[kept]]))
    return model.calibrate(table.take(held_out), y[held_out]) if len(held_out) else model


# Columns --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Column:
    source: Any
    """The encoder's column, which can parse further values."""
    values: Array

    @property
    def name(self) -> str:
        return str(self.source.name)

    @property
    def is_category(self) -> bool:
        return bool(self.source.kind == "category")

    @cached_property
    def codes(self) -> Array:
        """Whole numbers, the same for equal values."""
        values = np.array([str(value) for value in self.values.tolist()]) if self.is_category else self.values
        codes: Array = np.unique(values, return_inverse=True)[1]
        return codes

    @cached_property
    def frequencies(self) -> Array:
        """The share of rows with the same value."""
        return _frequencies(self.codes)

    @property
    def is_constant(self) -> bool:
        return bool(self.codes.max() == 0)

    @property
    def is_id(self) -> bool:
        """Whether it numbers the rows, or is called an id and differs in every row."""
        if self.source.kind != "number" or len(self.values) != self.codes.max() + 1 or np.isnan(self.values).any():
            return False
        is_named = bool(_IDS & set(self.name.lower().replace("_", " ").split()))
        is_count = np.ptp(self.values) == len(self.values) - 1
        return bool((self.values == self.values.round()).all()) and (is_named or bool(is_count))

    def far(self, rows: Table, sign: float) -> Array:
        """A value never seen, or those of the rows moved by 8 standard deviations and more than their range."""
        if self.is_category:
            return np.full(len(rows), "(never seen)", dtype=object)
        known = self.values[~np.isnan(self.values)]
        step = sign * _FAR * max(known.std(), np.ptp(known) / 7)
        moved: Array = self.source.parse(rows.columns[self.name], rows.lines) + step
        return moved if self.source.kind == "number" else (moved * 86_400e6).astype("datetime64[us]")

    def described(self) -> dict[str, str]:
        return {"column": self.name, "type": self.source.kind, "in training": self.source.describe()}


def _frequencies(codes: Array) -> Array:
    return np.bincount(codes)[codes] / len(codes)


def _distinct(columns: Sequence[_Column], y: Array, is_classes: bool) -> tuple[Array, Array, Finding]:
    """The first of equal rows, and for all rows the number of their set of equal columns.

    Rows of few categories are equal by chance; they stay.
    """
    used = [column for column in columns if not column.is_id]
    num, targets = len(y), np.unique(y, axis=0, return_inverse=True)[1].reshape(-1)
    expected = (num - 1) * np.exp(np.sum([np.log(column.frequencies) for column in used], axis=0))
    is_rare = expected < _BY_CHANCE if is_classes else expected * _frequencies(targets) < 1
    groups = np.unique(np.stack([column.codes for column in used], 1), axis=0, return_inverse=True)[1].reshape(-1)
    groups = np.where(is_rare, groups, num + np.arange(num))
    rows = np.sort(np.unique(np.stack([groups, targets], 1), axis=0, return_index=True)[1])
    share = 1 - len(rows) / num
    sentence = f"{num - len(rows)} of {num} rows ({share:.1%}) repeat another row exactly; each was counted once."
    if share <= _REPEATED:
        return rows, groups, Finding("duplicates", "ok", sentence, numbers={"share": share})
    advice = "Find out why: repeated rows make a random test look better than it is."
    return rows, groups, Finding("duplicates", "care", sentence, advice, {"share": share})


def _check_leak(columns: Sequence[_Column], y: Array, is_classes: bool) -> Finding:
    """Predict the target from each column alone."""
    chosen = np.random.default_rng(0).permutation(len(y))[:_MOST_LEAK]
    y = np.unique(y, return_inverse=True)[1] if is_classes else y.reshape(len(y), -1)[:, 0].astype(float)
    skills = {column.name: _skill(column, y[chosen], chosen, is_classes) for column in columns}
    name, best = max(skills.items(), key=lambda item: item[1])
    if best < _LEAK:
        sentence = f"No column predicts the target nearly alone; {name!r} removes {max(best, 0):.0%} of the error."
        return Finding("leak", "ok", sentence, numbers={"skill": best})
    sentence = f"Column {name!r} alone predicts the target nearly perfectly: it removes {best:.1%} of the error."
    advice = "Leave it out if it is only known together with the target."
    return Finding("leak", "care", sentence, advice, {"skill": best})


def _skill(column: _Column, y: Array, chosen: Array, is_classes: bool) -> float:
    """The share of the error of guessing that a tree removes, or for numbers the rank correlation, squared."""
    if column.is_constant:
        return 0.0
    x = column.codes[chosen, None]
    tree = DecisionTreeClassifier if is_classes else DecisionTreeRegressor
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about rare classes
        predicted = cross_val_predict(tree(min_samples_leaf=max(2, len(y) // 200), random_state=0), x, y, cv=3)
    if is_classes:
        return float(1 - (predicted != y).mean() / max(1 - np.bincount(y).max() / len(y), _LEAST))
    rank = 0.0 if column.is_category else float(np.nan_to_num(stats.spearmanr(x[:, 0], y).statistic))
    return max(float(1 - ((predicted - y) ** 2).mean() / max(y.var(), 1e-300)), rank**2)


def _check_idle(columns: Sequence[_Column]) -> Finding:
    """Columns that can teach nothing."""
    ids, constant = [c.name for c in columns if c.is_id], [c.name for c in columns if c.is_constant]
    numbers = {"ids": float(len(ids)), "constant": float(len(constant))}
    words = [
        f"{_listed(names)} {what}"
        for names, what in ((ids, "only identifying rows"), (constant, "with one value in all rows"))
        if names
    ]
    sentence = "; ".join(words) or "No column only identifies rows, and none has one value in all rows"
    return Finding("idle columns", "care" if ids else "ok", f"{sentence}.", "Leave them out." * bool(words), numbers)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{len(names)} column{'s' * (len(names) > 1)} ({', '.join(map(repr, names[:_LISTED]))}{more})"


# Rows to hold out -----------------------------------------------------------------------------------------------------


def _moments(columns: Sequence[_Column], num: int, time: str | bool | None) -> tuple[Array | None, Finding | None]:
    """When each row happened, if it is known."""
    if time is False:
        return None, None
    dates = {
        column.name: column.values for column in columns if column.source.kind == "date" and not column.is_constant
    }
    if isinstance(time, str):
        numbers = {column.name: column.values for column in columns if not column.is_category}
        dates = {name: values for name, values in {"rows": np.arange(float(num)), **numbers}.items() if name == time}
        if not dates:
            raise InvalidInputError(f'time={time!r} must be a column of dates or numbers, "rows", or False.')
    for name, values in dates.items():
        sentence = f"The model was measured on later rows than those that it was trained on, by {name!r}."
        finding = Finding("time", "ok", sentence, "time=False splits at random.")
        return np.where(np.isnan(values), np.nanmedian(values), values), finding
    return None, None


def _splits(
    y: Array, rows: Array, groups: Array, moments: Array | None, is_classes: bool, folds: int | None
) -> Iterator[tuple[Array, Array]]:
    """Rows to train on and to hold out: all parts in turn, or only the last one of large tables."""
    generator = np.random.default_rng(0)
    wanted = min(folds or (_PARTS if len(rows) <= _ALL_PARTS_UP_TO else 1), _PARTS)
    if moments is None:
        _, first, index = np.unique(groups[rows], return_index=True, return_inverse=True)
        targets = np.unique(y, axis=0, return_inverse=True)[1].reshape(-1)[rows[first]]
        part = np.empty(len(first), dtype=np.int64)
        part[np.lexsort((generator.random(len(first)), targets))] = np.arange(len(first)) % _PARTS  # as in all parts
        parts = part[index]
    else:
        wanted = min(wanted, _LATER_PARTS)
        cuts = np.quantile(moments[rows], np.arange(1, _PARTS + 1) / (_PARTS + 1))
        parts = np.searchsorted(cuts, moments[rows], side="left") - 1  # −1 is for training only
    for at in range(_PARTS - wanted, _PARTS):
        kept, test = rows[parts != at if moments is None else parts < at], rows[parts == at]
        kept, test = generator.permutation(kept)[:_MOST_TRAIN], generator.permutation(test)[:_MOST_TEST]
        if is_classes:
            test = test[np.isin(y[test], y[kept])]
        if len(kept) >= _PARTS and len(test) > 1:
            yield np.sort(kept), np.sort(test)


# Predictions ----------------------------------------------------------------------------------------------------------


def _measure_classes(model: Any, table: Table, y: Array, known: Array) -> dict[str, Array]:
    """What the model says about held-out rows, next to a guess that knows the targets of the training rows."""
    p = np.clip(model.predict_proba(table), _LEAST, 1.0)
    at, index = np.arange(len(y)), np.searchsorted(model.classes_, y)
    counts = (known[:, None] == model.classes_).sum(0) + 1.0
    others = np.maximum(p.sum(0) - p, _LEAST) / (len(y) - 1)
    return {
        "log_prob": np.log(p[at, index]),
        "swapped": np.log(others[at, index]),
        "guess": np.log(counts / counts.sum())[index],
        "loss": (p.argmax(1) != index).astype(float),
        "guess_loss": (counts.argmax() != index).astype(float),
        "residuals": (np.eye(p.shape[1])[index] - p)[:, np.argsort(-counts, kind="stable")[:2]],
        "confidence": p.max(1),
        "uncertainty": -(p * np.log(p)).sum(1),
        "predicted": model.classes_[p.argmax(1)],
        "actual": y,
    }


def _measure_numbers(model: Any, table: Table, y: Array, known: Array) -> dict[str, Array]:
    y, known = (np.asarray(values, dtype=np.float64).reshape(len(values), -1) for values in (y, known))
    prediction, targets = model.predictive(table), torch.as_tensor(y)
    shifts = {max(1, round(len(y) * step / (_SWAPS + 1))) for step in range(1, _SWAPS + 1)}
    others = [np.roll(_log_prob(prediction, targets.roll(-shift, 0)), shift) for shift in shifts]
    mean, std = known.mean(0), np.maximum(known.std(0), 1e-300)
    center, width = (np.asarray(part).reshape(y.shape) for part in model.predict(table, return_std=True))
    half, most = ([np.asarray(end).reshape(y.shape) for end in model.predict_interval(table, a)] for a in (0.5, 0.05))
    return {
        "log_prob": _log_prob(prediction, targets),
        "swapped": np.logaddexp.reduce(others, axis=0) - math.log(len(others)),
        "guess": stats.norm.logpdf(y, mean, std).sum(1),
        "loss": ((y - center) ** 2).mean(1),
        "guess_loss": ((y - mean) ** 2).mean(1),
        "residuals": (y - center) / std,
        "in 50%": (half[0] <= y) & (y <= half[1]),
        "in 95%": (most[0] <= y) & (y <= most[1]),
        "uncertainty": (width / std).mean(1),
        "predicted": center[:, 0],
        "low": most[0][:, 0],
        "high": most[1][:, 0],
        "actual": y[:, 0],
    }


def _log_prob(prediction: Any, y: torch.Tensor) -> Array:
    return np.maximum(np.asarray(prediction.log_prob(y), dtype=np.float64), -1e6)


def _promises(found: Mapping[str, Array], is_classes: bool) -> Any:
    if is_classes:
        return class_promises(found["confidence"], found["loss"] == 0)
    return interval_promises({0.5: found["in 50%"], 0.95: found["in 95%"]})


def _score(found: Mapping[str, Array], is_classes: bool) -> str:
    own, guess = float(found["loss"].mean()), float(found["guess_loss"].mean())
    if is_classes:
        return f"It is right for {1 - own:.1%} of rows; always guessing the most frequent class, {1 - guess:.1%}."
    return f"Its typical error is {shown(math.sqrt(own))}; always guessing the mean, {shown(math.sqrt(guess))}."


def _metrics(found: Mapping[str, Array], is_classes: bool) -> dict[str, float]:
    own, guess = float(found["loss"].mean()), float(found["guess_loss"].mean())
    scores = {"accuracy": 1 - own, "guess_accuracy": 1 - guess}
    if not is_classes:
        scores = {"rmse": math.sqrt(own), "guess_rmse": math.sqrt(guess)}
        scores |= {f"coverage_{n}": float(found[f"in {n}%"].mean()) for n in (50, 95)}
    nll = {"nll": -float(found["log_prob"].mean()), "guess_nll": -float(found["guess"].mean())}
    return {"rows": float(len(found["loss"])), **scores, **nll}


def _referral(found: Mapping[str, Array], is_classes: bool, lines: Array) -> dict[str, list[dict[str, Any]]]:
    """The error among the rows that are kept, and the rows that the model is least sure of."""
    order = np.argsort(found["uncertainty"], kind="stable")
    kept = []
    for share in (0.0, 0.1, 0.2, 0.4, 0.6):
        error = float(found["loss"][order[: max(1, round(len(order) * (1 - share)))]].mean())
        kept.append({"referred": f"{share:.0%}", "error": f"{error:.1%}" if is_classes else shown(math.sqrt(error))})
    rows = []
    for at in order[::-1][:_REFERRED]:
        sure = (
            f"{found['confidence'][at]:.0%}"
            if is_classes
            else " to ".join(shown(found[e][at]) for e in ("low", "high"))
        )
        values = {"predicted": shown(found["predicted"][at]), "sure": sure, "actual": shown(found["actual"][at])}
        rows.append({"line": int(lines[found["row"][at]]), **values})
    return {"The error among the others when the least sure rows are referred": kept, "The least sure rows": rows}


def _scope(num_test: int, num: int, is_own: bool, is_later: bool) -> Finding:
    others = "models trained in the same way on " + ("earlier rows" if is_later else "the other rows")
    sentence = (
        f"Measured on {num_test} of {num} rows by {'the model itself' if is_own else others}. 'useful' and "
        "'calibration' hold only for rows like these; 'far' and 'single columns' are about other rows."
    )
    return Finding("scope", "ok", sentence, "model.check(rows) says whether new rows are like them.")


# Away from the data ---------------------------------------------------------------------------------------------------


def _check_away(model: Any, table: Table, scale: Any, columns: Sequence[_Column]) -> list[Finding]:
    """Move columns of held-out rows out of the data: all together, and one by one. Constant columns stay."""
    rows = table.take(np.linspace(0, len(table) - 1, min(len(table), _MOST_MOVED)).round().astype(int))
    movable = [column for column in columns if not column.is_constant]

    def level(moved: Sequence[_Column]) -> float:
        """The mean uncertainty in the better known of two directions."""
        tables = [Table({**rows.columns, **{c.name: c.far(rows, sign) for c in moved}}, rows.lines) for sign in (1, -1)]
        return min(_uncertainty(model, each, scale) for each in tables)

    is_classes = hasattr(model, "predict_proba")
    on_data, together = _uncertainty(model, rows, scale), level(movable)
    alone = {column.name: level([column]) for column in movable}
    needed = _ALONE[is_classes] * (1.0 if is_classes else on_data)
    missed = [name for name in alone if alone[name] < needed]
    least = min(alone, key=lambda name: alone[name])
    unit = "of the largest entropy" if is_classes else "of the targets' standard deviation"
    far = f"With all columns {_FAR:g} standard deviations away, the uncertainty is {together:.2f} {unit}"
    single = f"With one column far away, the uncertainty is {alone[least]:.2f} {unit} or more ({least!r})"
    numbers = {"on_data": on_data, "together": together, "least": alone[least], "needed": needed}
    return [
        Finding(
            "far",
            "ok" if together >= _TOGETHER[is_classes] else "care",
            f"{far}; on the data {on_data:.2f}, and {_TOGETHER[is_classes]:g} is needed.",
            numbers=numbers,
        ),
        Finding(
            "single columns",
            "care" if missed else "ok",
            f"{single}; {needed:.2f} is needed" + (f" and missed by {_listed(missed)}." if missed else "."),
            numbers=numbers,
        ),
    ]


def _uncertainty(model: Any, rows: Table, scale: Any) -> float:
    """The mean entropy as a share of the largest, or the mean standard deviation in units of the targets'."""
    if hasattr(model, "predict_proba"):
        p = np.clip(model.predict_proba(rows), _LEAST, 1.0)
        return float(-(p * np.log(p)).sum(1).mean() / math.log(p.shape[1]))
    return float(np.mean(model.predict(rows, return_std=True)[1] / scale))
