"""The paper's protocol for hyperparameters: a search on a held-out tenth of the training data, or on the task's own
validation data.

Optuna keeps the study: its storage, its heartbeats and retries let several processes share one, and repeat the trial
of a process that was killed. Tuning cannot see test data: only `Experiment.evaluate` loads them, and nothing in this
module calls it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import optuna
import torch
from optuna import Trial, TrialPruned
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.trial import TrialState
from torch import Tensor

from fsvi.errors import FSVIError, InvalidInputError, NonFiniteLossError, SingularCovarianceError
from fsvi.functions.priors import GaussianProcess
from fsvi.methods import Method
from fsvi.serialization import Configurable, check_writable, write_bytes
from fsvi.training.callbacks import Callback, TrainingState
from fsvi.validation import check_count, check_seed
from paper import data
from paper.experiment import CPU, Compute, Experiment, Order
from paper.records import result_path
from paper.runs import checked, recorded
from paper.tasks.registry import TASKS

Space: TypeAlias = Mapping[str, tuple[float, float] | list[Any]]
"""Settings by name: a range, searched on a logarithmic scale, or a list of choices."""
_WIDE: Space = {"prior_variance": (1e-3, 1e3)}
_PARAMETER_SPACE: Space = {"prior_variance": (1e-3, 10.0), "num_samples": [1, 5]}
_CONTEXT: Space = {"num_context": [4, 8, 16, 32, 64], "kl_weight": (1e-5, 1e-1)}
_FUNCTION_SPACE: Space = {"prior_variance": (0.1, 100.0), **_CONTEXT, "num_samples": [1, 5]}
SPACES: dict[str, Space] = {
    "map": _WIDE,
    "swag": _WIDE,
    "laplace": _WIDE,
    "vbll": {"prior_variance": (1e-3, 1e2)},
    "mc-dropout": {"rate": (0.01, 0.5)},
    "mfvi": _PARAMETER_SPACE,
    "mfvi-tempered": _PARAMETER_SPACE,
    "mfvi-radial": _PARAMETER_SPACE,
    "vogn": {"prior_variance": (1e-3, 10.0), "damping": (1e-4, 1e-1)},
    "ivon": {"prior_variance": (1e-3, 10.0), "initial_scale": (1e-2, 1.0)},
    "rank1": {**_WIDE, "prior_std": (0.01, 1.0)},
    "duq": {"length_scale": (0.05, 1.0), "gradient_penalty": (0.005, 0.5)},
    "spg": _CONTEXT,
    "fbnn": _CONTEXT,
    "fs-eb": {"prior_variance": (1e-2, 1e3), **_CONTEXT},
    "gfsvi": {**_FUNCTION_SPACE, "gamma": (1e-5, 1e-1)},
    "fsvi": _FUNCTION_SPACE,
}
"""What is searched, by method; the learning rate, too, between a quarter and four times the recipe's."""
_PARTS = {"prior_variance": ("prior", "variance"), "gamma": ("divergence", "gamma")}
"""Settings of objects that a method is given: the method's argument, and the setting of the object."""
_HEARTBEAT = 60
_STARTUP, _WARMUP, _REPORTS = 5, 3, 10
"""Trials that must have ended before any is pruned, the first report that can prune one, and reports per training."""


def tune(
    order: Order,
    out: Path,
    trials: int,
    contexts: tuple[str, ...] = (),
    tell: Callable[[str], None] = print,
    splits: int = 1,
    compute: Compute = CPU,
    storage: str | None = None,
    seconds: float | None = None,
) -> dict[str, Any]:
    """Search until the study has `trials` trials; returns its summary, which is also written to the folder `out`.

    The first trial has the recipe's own settings. Another seed, other contexts or another number of splits make
    another study. A trial is pruned if, from 30% of its training on, it is worse than the median of the others.

    Args:
        order: The task, method, profile and first seed.
        out: The folder for the summary.
        trials: The number of trials of the whole study, including earlier ones and those of other processes.
        contexts: Contexts to choose from; none to keep the order's.
        tell: Receives a line for each trial.
        splits: The number of random splits over which the value of a trial is averaged, with successive seeds.
        compute: Where and how to train.
        storage: The URL of a database that Optuna can use; None for an SQLite file next to the summary.
        seconds: The time after which this process starts no more trials.
    """
    order = checked(order)
    for context in contexts:
        checked(replace(order, context=context))
    contexts = tuple(sorted(set(contexts)))  # Optuna identifies a search by the order of its choices
    check_count("trials", trials)
    check_seed(order.seed + check_count("splits", splits) - 1)
    search = _Search(order, contexts, splits, compute)
    row = replace(order, context="+".join(contexts) or order.context)
    name = f"{order.task}.{result_path(out, row).stem}" + (f"-{splits}" if splits > 1 else "")
    path = check_writable(out) / f"{name}.json"
    study = _open(search, name, storage or f"sqlite:///{path.with_suffix('.db')}")

    def after(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        value = "pruned" if trial.state == TrialState.PRUNED else f"{trial.value:.4f}"
        tell(f"trial {len(_ended(study))}/{trials}: {value}  {trial.params}")
        write_bytes(path, (json.dumps(search.summary(study), indent=1) + "\n").encode())
        if len(_ended(study)) >= trials:
            study.stop()

    if len(_ended(study)) < trials:
        study.optimize(search.value, timeout=seconds, callbacks=[after])
    summary = search.summary(study)
    if summary["best"] is None:
        raise FSVIError(f"none of the {len(summary['trials'])} trials in {path} could be trained: increase --trials.")
    return summary


def held_out(experiment: Experiment, seed: int) -> tuple[Experiment, tuple[Any, Tensor]]:
    """The experiment on nine tenths of its training data and the remaining tenth, or its own validation data."""
    if experiment.validation is not None:
        return experiment, experiment.validation()
    x, y = experiment.data
    train, rest = data.splits(len(x), 0.1, seed)
    return replace(experiment, data=(x[train], y[train])), (x[rest], y[rest])


def _open(search: _Search, name: str, storage: str) -> optuna.Study:
    """The study; a new one starts with the recipe's settings."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        kept = RDBStorage(
            storage,
            heartbeat_interval=_HEARTBEAT,
            heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(),
            engine_kwargs={"connect_args": {"timeout": 100}} if storage.startswith("sqlite") else None,
        )
        study = optuna.create_study(
            storage=kept,
            study_name=name,
            direction="maximize",
            load_if_exists=True,
            sampler=optuna.samplers.TPESampler(seed=search.order.seed),
            pruner=optuna.pruners.MedianPruner(_STARTUP, _WARMUP),
        )
    except Exception as error:
        raise FSVIError(f"the study at {storage} cannot be used: {error}") from error
    if study.user_attrs.get("recipe", search.fixed) != search.fixed:
        raise FSVIError(f"the study {name} belongs to another version of the recipe: choose another --out.")
    if "recipe" not in study.user_attrs:
        study.set_user_attr("recipe", search.fixed)
        study.enqueue_trial(search.first, skip_if_exists=True)
    return study


def _ended(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    return study.get_trials(states=(TrialState.COMPLETE, TrialState.PRUNED))


class _Search:
    """A search space that holds the recipe's own settings, and how a choice is evaluated.

    Attributes:
        space: What is searched.
        first: The recipe's own values of it.
        fixed: The settings that all trials share, such as the length of training; they make trials comparable.
    """

    def __init__(self, order: Order, contexts: tuple[str, ...], splits: int, compute: Compute) -> None:
        self.order, self.contexts, self.splits, self.compute = order, contexts, splits, compute
        if order.member not in SPACES:
            raise InvalidInputError(f"{order.method!r} has no search space: choose one of {', '.join(SPACES)}.")
        experiment = TASKS[order.task].experiment(order).computed(compute)
        if not experiment.is_diagnosed or experiment.starts:
            raise InvalidInputError(
                f"{order.task!r} with {order.method!r} cannot be tuned at profile={order.profile!r}: it is a sequence "
                "of tasks, or starts from a network that has seen the data that would be held out."
            )
        made: Any = experiment.build(order.seed)
        self.method: Any = made.members[0] if order.method != order.member else made
        searched = SPACES[order.member]
        own = {name: getattr(self.method, name) for name in searched if hasattr(self.method, name)}
        own |= _part_values(self.method) | {"lr": experiment.fit_settings.get("lr"), "context": order.context}
        if own.get("kl_weight", 0) is None:
            own["kl_weight"] = 1 / len(experiment.data[0])
        rate = own["lr"]
        listed = {**searched, **({} if rate is None else {"lr": (rate / 4, rate * 4)})}
        self.space = {name: _holding(each, own[name]) for name, each in listed.items() if name in own}
        self.space |= {"context": list(contexts)} if contexts else {}
        self.first = {name: own[name] for name, each in self.space.items() if _has(each, own[name])}
        varied = {*self.space, *(argument for argument, _ in _PARTS.values())}
        settings = {
            "method": {name: value for name, value in _settings_of(self.method).items() if name not in varied},
            "fit": {name: value for name, value in experiment.fit_settings.items() if name not in varied},
        }
        self.fixed = json.loads(json.dumps({name: recorded(each) for name, each in settings.items()}))

    def value(self, trial: Trial) -> float:
        """The mean log-likelihood of the held-out data, over splits."""
        params = {name: _suggest(trial, name, each) for name, each in self.space.items()}
        context = params.pop("context", self.order.context)
        rate = {"lr": params.pop("lr")} if "lr" in params else {}
        scores: list[float] = []
        for seed in range(self.order.seed, self.order.seed + self.splits):
            order = replace(
                self.order,
                seed=seed,
                context=context,
                settings={**self.order.settings, **_with_parts(self.method, params)},
                fit_settings={**self.order.fit_settings, **rate},
            )
            try:
                scores.append(self._score(order, trial, scores))
            except (NonFiniteLossError, SingularCovarianceError) as error:
                raise TrialPruned(str(error)) from error
        mean = sum(scores) / len(scores)
        if not math.isfinite(mean):
            raise TrialPruned(f"the log-likelihood is {mean}")
        return mean

    def _score(self, order: Order, trial: Trial, earlier: list[float]) -> float:
        experiment, (x, y) = held_out(TASKS[order.task].experiment(order).computed(self.compute), order.seed)
        method = experiment.build(order.seed)

        def score(num: int | None, samples: int) -> float:
            return float(method.predict(x[:num], num_samples=samples).log_prob(y[:num]).mean())

        watch = _Watch(trial, lambda: sum([*earlier, score(1000, 8)]) / (len(earlier) + 1), len(earlier))
        experiment.train(method, order.seed, progress=False, device=self.compute.device, callbacks=[watch])
        return score(None, 16)

    def summary(self, study: optuna.Study) -> dict[str, Any]:
        """The study as plain values: the search, its trials, and the best one."""
        order, ended = self.order, _ended(study)
        done = [trial for trial in ended if trial.state == TrialState.COMPLETE and trial.value is not None]
        best = max(done, key=lambda trial: trial.value or -math.inf, default=None)
        return {
            "task": order.task,
            "method": order.method,
            "profile": order.profile,
            "seed": order.seed,
            "splits": self.splits,
            "contexts": list(self.contexts) or ([] if order.context is None else [order.context]),
            "objective": "mean log-likelihood of held-out training data or of the task's validation data",
            "recipe": study.user_attrs.get("recipe"),
            "best": None if best is None else {"value": best.value, **best.params},
            "trials": [
                {"value": None if trial not in done else trial.value, "state": trial.state.name.lower(), **trial.params}
                for trial in ended
            ],
        }


class _Watch(Callback):
    """Reports the held-out log-likelihood at ten moments of training, and prunes a trial worse than the median."""

    def __init__(self, trial: Trial, score: Callable[[], float], earlier: int) -> None:
        self.trial, self.score, self.first, self.reported = trial, score, _REPORTS * earlier, 0

    def on_epoch_end(self, state: TrainingState) -> None:
        """Report."""
        moment = state.epoch * _REPORTS // state.epochs
        if moment <= self.reported or state.epoch >= state.epochs:
            return
        self.reported = moment
        # Some methods cannot predict before training has ended.
        with suppress(InvalidInputError), torch.random.fork_rng(devices=[]):
            self.trial.report(self.score(), self.first + moment)
            if self.trial.should_prune():
                raise TrialPruned(f"at {moment / _REPORTS:.0%} of training it was worse than the median of the others")


# Settings -------------------------------------------------------------------------------------------------------------


def _suggest(trial: Trial, name: str, each: tuple[float, float] | list[Any]) -> Any:
    return (
        trial.suggest_float(name, *each, log=True) if isinstance(each, tuple) else trial.suggest_categorical(name, each)
    )


def _has(each: tuple[float, float] | list[Any], value: Any) -> bool:
    if isinstance(each, tuple):
        return isinstance(value, (int, float)) and each[0] <= value <= each[1]
    return value in each


def _holding(each: tuple[float, float] | list[Any], value: Any) -> tuple[float, float] | list[Any]:
    """The range or the choices, widened to include the value if it is on their scale."""
    if isinstance(each, tuple):
        is_on_scale = isinstance(value, (int, float)) and value > 0
        return (min(each[0], value), max(each[1], value)) if is_on_scale else each
    return each if value is None or value in each else sorted([*each, value])


def _part_values(method: Method) -> dict[str, Any]:
    """The settings of a method's parts by their names in a search; not of those it has as arguments of its own."""
    own = {name: _part_settings(method, argument) for name, (argument, _) in _PARTS.items()}
    return {
        name: settings[_PARTS[name][1]]
        for name, settings in own.items()
        if not hasattr(method, name) and _PARTS[name][1] in settings
    }


def _with_parts(method: Method, params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of a search as arguments of the method: its parts are rebuilt with the settings among them."""
    varied = [name for name in _part_values(method) if name in params]
    arguments = {name: value for name, value in params.items() if name not in varied}
    for name in varied:
        argument, setting = _PARTS[name]
        settings = {**_part_settings(method, argument), setting: params[name]}
        arguments[argument] = type(getattr(method, argument))._from_settings(settings)
    return arguments


def _part_settings(method: Method, argument: str) -> dict[str, Any]:
    """The settings of a part; none if it cannot be rebuilt, or is a Gaussian process that is fitted to the targets."""
    part = getattr(method, argument, None)
    is_fitted = isinstance(part, GaussianProcess) and part.learn
    return {} if not isinstance(part, Configurable) or part._transient or is_fitted else _settings_of(part)


def _settings_of(part: Configurable) -> dict[str, Any]:
    """The constructor arguments of a method or of its part; none if they cannot be serialized."""
    try:
        return dict(part.config()["settings"])
    except InvalidInputError:
        return {}
