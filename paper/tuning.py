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
from typing import Any

import optuna
import torch
from optuna import Trial, TrialPruned
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.trial import TrialState
from torch import Tensor

from fsvi.errors import FSVIError, InvalidInputError, NonFiniteLossError, SingularCovarianceError
from fsvi.functions.priors import GaussianProcess
from fsvi.methods import Ensemble, Method
from fsvi.serialization import Configurable, check_writable, write_bytes
from fsvi.training.callbacks import Callback, TrainingState
from fsvi.validation import check_count, check_seed
from paper import data
from paper.experiment import CPU, Compute, Experiment, Order
from paper.methods import GAMMA, METHODS, VARIANCE, Choice, Range, Space
from paper.records import result_path
from paper.runs import checked, recorded
from paper.tasks.registry import TASKS

_PARTS = {VARIANCE: ("prior", "variance"), GAMMA: ("divergence", "gamma")}
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
    recipe = search.fixed()
    if study.user_attrs.get("recipe", recipe) != recipe:
        raise FSVIError(f"the study {name} belongs to another version of the recipe: choose another --out.")
    if "recipe" not in study.user_attrs:
        study.set_user_attr("recipe", recipe)
        study.enqueue_trial(search.recipe_params(), skip_if_exists=True)
    return study


def _ended(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    return study.get_trials(states=(TrialState.COMPLETE, TrialState.PRUNED))


class _Search:
    """A search space, and how a choice is evaluated."""

    def __init__(self, order: Order, contexts: tuple[str, ...], splits: int, compute: Compute) -> None:
        self.order, self.contexts, self.splits, self.compute = order, contexts, splits, compute
        listed = METHODS[order.member].search
        if not listed:
            known = ", ".join(name for name, entry in METHODS.items() if entry.search)
            raise InvalidInputError(f"{order.method!r} has no search space: choose one of {known}.")
        self.experiment = TASKS[order.task].experiment(order).computed(compute)
        if not self.experiment.is_diagnosed or self.experiment.starts:
            raise InvalidInputError(
                f"{order.task!r} with {order.method!r} cannot be tuned at profile={order.profile!r}: it is a sequence "
                "of tasks, or starts from a network that has seen the data that would be held out."
            )
        made = self.experiment.build(order.seed)
        self.method: Any = made.members[0] if isinstance(made, Ensemble) else made
        rate = self.experiment.fit_settings.get("lr")
        rates = {} if rate is None else {"lr": Range(rate / 4, rate * 4)}
        own = self._own()
        space = {name: each.holding(own[name]) for name, each in {**listed, **rates}.items() if name in own}
        self.space: Space = {**space, **({"context": Choice(contexts)} if contexts else {})}

    def _own(self) -> dict[str, Any]:
        """The recipe's own settings by name."""
        own = {
            name: getattr(self.method, name) for name in METHODS[self.order.member].search if hasattr(self.method, name)
        }
        if own.get("kl_weight", 0) is None:
            own["kl_weight"] = 1 / len(self.experiment.data[0])
        own |= {"lr": self.experiment.fit_settings.get("lr"), "context": self.order.context}
        return own | _part_values(self.method)

    def recipe_params(self) -> dict[str, Any]:
        """The searched settings with the recipe's own values, where a trial can have them."""
        own = self._own()
        return {name: own[name] for name, each in self.space.items() if name in own and each.has(own[name])}

    def fixed(self) -> dict[str, Any]:
        """The settings that all trials share, such as the length of training; they make trials comparable."""
        searched = {*self.space, *(argument for argument, _ in _PARTS.values())}
        settings = {name: value for name, value in _settings_of(self.method).items() if name not in searched}
        fit = {name: value for name, value in self.experiment.fit_settings.items() if name not in searched}
        fixed: dict[str, Any] = json.loads(json.dumps({"method": recorded(settings), "fit": recorded(fit)}))
        return fixed

    def value(self, trial: Trial) -> float:
        """The mean log-likelihood of the held-out data, over splits."""
        params = {name: choices.suggest(trial, name) for name, choices in self.space.items()}
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
        with (
            suppress(InvalidInputError),
            torch.random.fork_rng(devices=[]),
        ):  # some methods cannot predict before training has ended
            self.trial.report(self.score(), self.first + moment)
            if self.trial.should_prune():
                raise TrialPruned(f"at {moment / _REPORTS:.0%} of training it was worse than the median of the others")


# Settings of parts --------------------------------------------------------------------------------------------------


def _part_values(method: Method) -> dict[str, Any]:
    """The settings of a method's parts by their names in a search.

    Left out are parts that cannot be rebuilt, the variance of a Gaussian process that is fitted to the targets, and
    names that are arguments of the method itself, such as the `prior_variance` of `FSEB`.
    """
    own = {
        name: _part_settings(method, argument) for name, (argument, _) in _PARTS.items() if not hasattr(method, name)
    }
    return {name: settings[_PARTS[name][1]] for name, settings in own.items() if _PARTS[name][1] in settings}


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
    part = getattr(method, argument, None)
    is_fitted = isinstance(part, GaussianProcess) and part.learn
    if not isinstance(part, Configurable) or part._transient or is_fitted:
        return {}
    return _settings_of(part)


def _settings_of(part: Configurable) -> dict[str, Any]:
    """The constructor arguments of a method or of its part; none if they cannot be serialized."""
    try:
        return dict(part.config()["settings"])
    except InvalidInputError:
        return {}
