"""The models of `python -m paper bench --tables`: the estimators, trees, a linear model, a network."""

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
"""The share of training rows whose errors give models a standard deviation, and conformal intervals their width."""


@dataclass
class Split:
    """Training rows and targets (classes are numbers from 0), test rows, and the models' seed."""

    x: pd.DataFrame
    y: Array
    x_test: pd.DataFrame
    num_classes: int
    """0 for regression."""
    seed: int = 0


@dataclass
class Answer:
    """Processor time of the fit, and what a model says about test rows: probabilities, or moments and 95% intervals."""

    cpu: float
    proba: Array | None = None
    mean: Array | None = None
    std: Array | None = None
    lower: Array | None = None
    upper: Array | None = None

    def __post_init__(self) -> None:
        if self.lower is None and self.mean is not None and self.std is not None:
            self.lower, self.upper = self.mean - NORMAL * self.std, self.mean + NORMAL * self.std


Run = Callable[[Split], Answer]


def _constant(split: Split) -> Answer:
    count = len(split.x_test)
    if split.num_classes:
        shares = np.bincount(split.y, minlength=split.num_classes) / len(split.y)
        return Answer(0.0, np.tile(shares, (count, 1)))
    return Answer(0.0, mean=np.full(count, split.y.mean()), std=np.full(count, split.y.std()))


def ours(method: str, **settings: Any) -> Run:
    """Our estimator with a method, on the rows as they are."""

    def run(split: Split) -> Answer:
        kind = FSVIClassifier if split.num_classes else FSVIRegressor
        model: Any = kind(method, settings=settings or None, random_state=split.seed)
        cpu = _fit(model, split.x, split.y)
        if split.num_classes:
            return _classes(cpu, model, split.x_test, split)
        mean, std = model.predict(split.x_test, return_std=True)
        return Answer(cpu, None, mean, std, *model.predict_interval(split.x_test, alpha=0.05))

    return run


def _fit(model: Any, x: Any, y: Array) -> float:
    started = time.process_time()
    model.fit(x, y)
    return time.process_time() - started


def _classes(cpu: float, model: Any, x_test: Any, split: Split) -> Answer:
    """Probabilities of all classes; those that training rows lack have none."""
    full = np.zeros((len(x_test), split.num_classes))
    full[:, np.asarray(model.classes_, dtype=int).ravel()] = model.predict_proba(x_test)
    return Answer(cpu, full)


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


def _texts(split: Split) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The same with categories as text, for CatBoost."""
    first, second = plain_frames(split)
    names = first.columns[[isinstance(kind, pd.CategoricalDtype) for kind in first.dtypes]]
    first, second = (
        x.astype(dict.fromkeys(names, object)).fillna(dict.fromkeys(names, "nan")) for x in (first, second)
    )
    return first, second


def encoded(split: Split) -> tuple[Array, Array]:
    """Rows as the estimators encode them, for models that take numbers only."""
    encoder = TableEncoder.learn(as_table(split.x))
    return encoder.transform(as_table(split.x)), encoder.transform(as_table(split.x_test))


def plain(make: Callable[[Split, Any], Any], prepare: Callable[[Split], Any], conformal: bool = False) -> Run:
    """A model of another library, whose standard deviation is that of its errors on held-out rows, unless it has one.

    With `conformal`, intervals are as wide as held-out errors, around the model without these rows.
    """

    def run(split: Split) -> Answer:
        x, x_test = prepare(split)
        model = make(split, x)
        if not conformal:
            cpu = _fit(model, x, split.y)
            if split.num_classes:
                return _classes(cpu, model, x_test, split)
            predicted = model.predict(x_test)
            if predicted.ndim == 2:  # CatBoost's mean and variance
                return Answer(cpu, mean=predicted[:, 0], std=np.sqrt(predicted[:, 1]))
            model = make(split, x)
        order = np.random.RandomState(split.seed).permutation(len(x))
        held_out, kept = np.split(order, [max(1, round(_HELD_OUT * len(x)))])
        rows = x.iloc if isinstance(x, pd.DataFrame) else x
        seconds = _fit(model, rows[kept], split.y[kept])
        errors = np.sort(np.abs(model.predict(rows[held_out]) - split.y[held_out]))
        if not conformal:
            return Answer(cpu, mean=predicted, std=np.full(len(x_test), np.sqrt((errors**2).mean())))
        rank, mean = int(np.ceil(0.95 * (len(errors) + 1))), model.predict(x_test)
        reach = errors[rank - 1] if rank <= len(errors) else np.inf
        return Answer(seconds, mean=mean, lower=mean - reach, upper=mean + reach)

    return run


def _boosting(split: Split, x: Any) -> Any:
    kind = HistGradientBoostingClassifier if split.num_classes else HistGradientBoostingRegressor
    return kind(random_state=split.seed)


def _forest(split: Split, x: Any) -> Any:
    kind = RandomForestClassifier if split.num_classes else RandomForestRegressor
    return kind(random_state=split.seed)


def _linear(split: Split, x: Any) -> Any:
    last = LogisticRegression(max_iter=1000) if split.num_classes else RidgeCV(np.logspace(-2, 3, 11))
    return make_pipeline(StandardScaler(), last)


def _lightgbm(library: Any) -> dict[str, Run]:
    def make(split: Split, x: Any) -> Any:
        kind = library.LGBMClassifier if split.num_classes else library.LGBMRegressor
        return kind(random_state=split.seed, n_jobs=1, verbose=-1)

    return {"LightGBM": plain(make, plain_frames), "conformal LightGBM": plain(make, plain_frames, conformal=True)}


def _catboost(library: Any) -> dict[str, Run]:
    def make(split: Split, x: Any) -> Any:
        given: dict[str, Any] = {
            "random_seed": split.seed,
            "thread_count": 1,
            "verbose": 0,
            "allow_writing_files": False,
        }
        given["cat_features"] = [name for name in x.columns if x[name].dtype.kind not in "iuf"]
        if split.num_classes:
            return library.CatBoostClassifier(**given)
        return library.CatBoostRegressor(loss_function="RMSEWithUncertainty", **given)

    return {"CatBoost": plain(make, _texts)}


def _pytabkit(library: Any) -> dict[str, Run]:
    def make(split: Split, x: Any) -> Any:
        kind = library.RealMLP_TD_Classifier if split.num_classes else library.RealMLP_TD_Regressor
        return kind(device="cpu", random_state=split.seed, n_threads=1)

    return {"RealMLP": plain(make, encoded)}


def make_models(tell: Callable[[str], None]) -> dict[str, Run]:
    """All models by name; those of libraries that are not installed are left out."""
    models = {
        "fsvi": ours("fsvi"),
        "map": ours("map"),
        "ensemble": ours("ensemble:map", size=5),
        "HistGradientBoosting": plain(_boosting, plain_frames),
        "conformal HistGradientBoosting": plain(_boosting, plain_frames, conformal=True),
        "forest": plain(_forest, encoded),
        "linear": plain(_linear, encoded),
        "constant": _constant,
    }
    for name, add in (("lightgbm", _lightgbm), ("catboost", _catboost), ("pytabkit", _pytabkit)):
        try:
            models |= add(import_module(name))
        except ImportError:
            tell(f"{name} is not installed and left out.")
    return models
