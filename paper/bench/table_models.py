"""The models of `python -m paper bench --tables`: the estimators, boosted trees, forest, linear model, constant."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fsvi.estimators import FSVIClassifier, FSVIRegressor
from fsvi.tables import TableEncoder, as_table

Array = NDArray[Any]
NORMAL = 1.959964
"""How many standard deviations a 95% interval reaches."""
_LEVELS = 200
"""Categories that trees get, the most frequent ones."""
_HELD_OUT = 0.2
"""The share of training rows whose errors give trees a standard deviation, and conformal intervals their width."""


@dataclass
class Split:
    """Training and test rows of a table.

    Attributes:
        x: Training rows.
        y: Their targets; classes are numbers from 0.
        x_test: Test rows.
        num_classes: The number of classes, 0 for regression.
        seed: The seed of the models.
    """

    x: pd.DataFrame
    y: Array
    x_test: pd.DataFrame
    num_classes: int
    seed: int = 0


@dataclass
class Answer:
    """What a model says about test rows.

    Attributes:
        cpu: Seconds of processor time of the fit.
        proba: The probabilities of all classes.
        mean: E[y].
        std: The standard deviation of y; None if the model has none.
        lower: The lower ends of 95% intervals.
        upper: Their upper ends.
    """

    cpu: float
    proba: Array | None = None
    mean: Array | None = None
    std: Array | None = None
    lower: Array | None = None
    upper: Array | None = None


def _constant(split: Split) -> Answer:
    count = len(split.x_test)
    if split.num_classes:
        shares = np.bincount(split.y, minlength=split.num_classes) / len(split.y)
        return Answer(0.0, np.tile(shares, (count, 1)))
    return _gaussian(0.0, np.full(count, split.y.mean()), np.full(count, split.y.std()))


def _gaussian(cpu: float, mean: Array, std: Array) -> Answer:
    return Answer(cpu, mean=mean, std=std, lower=mean - NORMAL * std, upper=mean + NORMAL * std)


def ours(method: str, **settings: Any) -> Callable[[Split], Answer]:
    """Our estimator with a method, on the rows as they are.

    Args:
        method: The name of the method.
        settings: Its settings.
    """

    def run(split: Split) -> Answer:
        kind = FSVIClassifier if split.num_classes else FSVIRegressor
        model: Any = kind(method, settings=settings or None, random_state=split.seed)
        cpu = _timed(lambda: model.fit(split.x, split.y))
        if split.num_classes:
            return Answer(cpu, _all_classes(model.predict_proba(split.x_test), model.classes_, split.num_classes))
        mean, std = model.predict(split.x_test, return_std=True)
        lower, upper = model.predict_interval(split.x_test, alpha=0.05)
        return Answer(cpu, mean=mean, std=std, lower=lower, upper=upper)

    return run


def _timed(action: Callable[[], Any]) -> float:
    started = time.process_time()
    action()
    return time.process_time() - started


def _all_classes(proba: Array, classes: Array, count: int) -> Array:
    """Probabilities of all classes; those that training rows lack have none."""
    full = np.zeros((len(proba), count))
    full[:, np.asarray(classes, dtype=int).ravel()] = proba
    return full


def plain_frames(split: Split) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows for trees: numbers, dates as days, and categories that occur in training rows; texts are left out."""
    both = pd.concat([split.x, split.x_test], ignore_index=True)
    for name in both.columns:
        column = both[name]
        if column.dtype.kind in "iuf":
            continue
        text = column.astype(str).where(column.notna(), "nan")
        count = text.iloc[: len(split.x)].nunique()
        if count > 30 and 2 * count > len(split.x):
            both = both.drop(columns=name)
            with_dates = pd.to_datetime(text, errors="coerce", format="mixed", dayfirst="." in text.iloc[0])
            if with_dates.notna().mean() > 0.9:
                both[name] = (with_dates - pd.Timestamp(0)).dt.total_seconds() / 86_400
        else:
            levels = list(text.iloc[: len(split.x)].value_counts().index[:_LEVELS])
            both[name] = pd.Categorical(text.where(text.isin(levels)), categories=levels)
    return both.iloc[: len(split.x)], both.iloc[len(split.x) :]


def trees(make: Callable[[Split, list[str]], Any], as_text: bool = False) -> Callable[[Split], Answer]:
    """A tree model; its standard deviation is that of the errors on held-out rows, unless it predicts one.

    Args:
        make: A function (split, names of categorical columns) -> unfitted model.
        as_text: Whether the model takes categories as text.
    """

    def run(split: Split) -> Answer:
        x, x_test = plain_frames(split)
        names = [str(name) for name in x.columns if isinstance(x[name].dtype, pd.CategoricalDtype)]
        if as_text:
            x, x_test = (
                part.astype(dict.fromkeys(names, object)).fillna(dict.fromkeys(names, "nan")) for part in (x, x_test)
            )
        model = make(split, names)
        cpu = _timed(lambda: model.fit(x, split.y))
        if split.num_classes:
            return Answer(cpu, _all_classes(model.predict_proba(x_test), model.classes_, split.num_classes))
        predicted = model.predict(x_test)
        if predicted.ndim == 2:  # CatBoost's mean and variance
            return _gaussian(cpu, predicted[:, 0], np.sqrt(predicted[:, 1]))
        errors = _held_out_errors(make(split, names), x, split)
        return _gaussian(cpu, predicted, np.full(len(predicted), np.sqrt((errors**2).mean())))

    return run


def _held_out_errors(model: Any, x: pd.DataFrame, split: Split) -> Array:
    order = np.random.RandomState(split.seed).permutation(len(x))
    held_out, kept = np.split(order, [max(1, round(_HELD_OUT * len(x)))])
    errors: Array = model.fit(x.iloc[kept], split.y[kept]).predict(x.iloc[held_out]) - split.y[held_out]
    return errors


def conformal(make: Callable[[Split, list[str]], Any]) -> Callable[[Split], Answer]:
    """Split conformal intervals around a model: as wide as the errors on held-out rows; there is no density.

    Args:
        make: A function (split, names of categorical columns) -> unfitted model.
    """

    def run(split: Split) -> Answer:
        x, x_test = plain_frames(split)
        model = make(split, [])
        errors: list[Array] = []
        cpu = _timed(lambda: errors.append(np.abs(_held_out_errors(model, x, split))))
        rank = int(np.ceil(0.95 * (len(errors[0]) + 1)))
        reach = np.sort(errors[0])[rank - 1] if rank <= len(errors[0]) else np.inf
        mean = model.predict(x_test)
        return Answer(cpu, mean=mean, lower=mean - reach, upper=mean + reach)

    return run


def _forest(split: Split) -> Answer:
    """A random forest; its variance is that between trees and that of the errors on rows out of the bag."""
    x, x_test = _encoded(split)
    kind = RandomForestClassifier if split.num_classes else RandomForestRegressor
    model: Any = kind(random_state=split.seed, oob_score=True)
    cpu = _timed(lambda: model.fit(x, split.y))
    if split.num_classes:
        return Answer(cpu, _all_classes(model.predict_proba(x_test), model.classes_, split.num_classes))
    by_tree = np.stack([tree.predict(x_test) for tree in model.estimators_])
    noise = ((model.oob_prediction_ - split.y) ** 2).mean()
    return _gaussian(cpu, by_tree.mean(0), np.sqrt(by_tree.var(0) + noise))


def _linear(split: Split) -> Answer:
    x, x_test = _encoded(split)
    last = LogisticRegression(max_iter=1000) if split.num_classes else RidgeCV(np.logspace(-2, 3, 11))
    model: Any = make_pipeline(StandardScaler(), last)
    cpu = _timed(lambda: model.fit(x, split.y))
    if split.num_classes:
        return Answer(cpu, _all_classes(model.predict_proba(x_test), model.classes_, split.num_classes))
    mean, noise = model.predict(x_test), np.sqrt(((model.predict(x) - split.y) ** 2).mean())
    return _gaussian(cpu, mean, np.full(len(mean), noise))


def _encoded(split: Split) -> tuple[Array, Array]:
    encoder = TableEncoder.learn(as_table(split.x))
    return encoder.transform(as_table(split.x)), encoder.transform(as_table(split.x_test))


def make_models(tell: Callable[[str], None]) -> dict[str, Callable[[Split], Answer]]:
    """All models by name; boosted trees of libraries that are not installed are left out.

    Args:
        tell: A function that shows a line of text.
    """

    def boosting(split: Split, names: list[str]) -> Any:
        kind = HistGradientBoostingClassifier if split.num_classes else HistGradientBoostingRegressor
        return kind(random_state=split.seed)

    models = {
        "fsvi": ours("fsvi"),
        "map": ours("map"),
        "ensemble": ours("ensemble:map", size=5),
        "HistGradientBoosting": trees(boosting),
        "forest": _forest,
        "linear": _linear,
        "constant": _constant,
    }
    for name, add in (("lightgbm", _add_lightgbm), ("catboost", _add_catboost)):
        try:
            add(models, import_module(name))
        except ImportError:
            tell(f"{name} is not installed and left out.")
    return models


def _add_lightgbm(models: dict[str, Callable[[Split], Answer]], library: Any) -> None:
    def make(split: Split, names: list[str]) -> Any:
        kind = library.LGBMClassifier if split.num_classes else library.LGBMRegressor
        return kind(random_state=split.seed, n_jobs=1, verbose=-1)

    models["LightGBM"], models["conformal LightGBM"] = trees(make), conformal(make)


def _add_catboost(models: dict[str, Callable[[Split], Answer]], library: Any) -> None:
    def make(split: Split, names: list[str]) -> Any:
        given = {"random_seed": split.seed, "thread_count": 1, "verbose": 0, "cat_features": names}
        if split.num_classes:
            return library.CatBoostClassifier(**given, allow_writing_files=False)
        return library.CatBoostRegressor(loss_function="RMSEWithUncertainty", **given, allow_writing_files=False)

    models["CatBoost"] = trees(make, as_text=True)
