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
from fsvi.methods import Method
from fsvi.serialization import Configurable, check_writable, write_bytes
from fsvi.training.callbacks import TrainingState
from fsvi.validation import check_count, check_seed
from paper import data
from paper.experiment import Experiment, Order
from paper.records import result_path
from paper.runs import checked, recorded
from paper.tasks.registry import TASKS

Space: TypeAlias = Mapping[str, tuple[float, float] | list[Any]]
"""Settings by name: a range, searched on a logarithmic scale, or a list of choices."""
_WIDE: Space = {"prior_variance": (1e-3, 1e3)}
_PARAMETER_SPACE: Space = {"prior_variance": (1e-3, 10.0), "num_samples": [1, 5]}
_CONTEXT: Space = {"num_context": [4, 8, 16, 32, 64], "kl_weight": (1e-5, 1e-1)}
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
    "gfsvi": {**_CONTEXT, "num_samples": [1, 5], "divergence.gamma": (1e-5, 1e-1)},
    "fsvi": {**_CONTEXT, "num_samples": [1, 5], "prior.variance": (0.1, 100.0)},
}
"""What is searched, by method; the learning rate, too, between a quarter and four times the recipe's."""
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
    storage: str | None = None,
    seconds: float | None = None,
) -> dict[str, Any]:
    """Search until the study has `trials` trials; returns its summary, which is also written to the folder `out`.

    The first trial is the recipe as it is. Another seed, other contexts or another number of splits, over which a
    trial is averaged, make another study. A trial is pruned if, from 30% of its training on, it is worse than the
    median of the others. The storage is the URL of a database; None is an SQLite file next to the summary. After
    `seconds`, this process starts no more trials.
    """
    order = checked(order)
    for context in contexts:
        checked(replace(order, context=context))
    contexts = tuple(sorted(set(contexts)))  # Optuna identifies a search by the order of its choices
    check_count("trials", trials)
    check_seed(order.seed + check_count("splits", splits) - 1)
    search = _Search(order, contexts, splits)
    row = replace(order, context="+".join(contexts) or order.context)
    name = f"{order.task}.{result_path(out, row).stem}" + (f"-{splits}" if splits > 1 else "")
    path = check_writable(out) / f"{name}.json"
    study = _open(search, name, storage or f"sqlite:///{path.with_suffix('.db')}")

    def after(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        value = "pruned" if trial.state == TrialState.PRUNED else f"{trial.value:.4f}"
        tell(f"trial {len(_ended(study))}/{trials}: {value}  {trial.params or 'the recipe'}")
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


def log_likelihood(method: Method, x: Any, y: Tensor, samples: int) -> float:
    """The mean log-likelihood of held-out data."""
    return float(method.predict(x, num_samples=samples).log_prob(y).mean())


def _open(search: _Search, name: str, storage: str) -> optuna.Study:
    """The study; a new one starts with the recipe."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(
            storage=RDBStorage(
                storage,
                heartbeat_interval=_HEARTBEAT,
                heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(),
                engine_kwargs={"connect_args": {"timeout": 100}} if storage.startswith("sqlite") else None,
            ),
            study_name=name,
            direction="maximize",
            load_if_exists=True,
            sampler=optuna.samplers.TPESampler(seed=search.order.seed),
            pruner=optuna.pruners.MedianPruner(_STARTUP, _WARMUP),
        )
    except Exception as error:
        raise FSVIError(f"the study at {storage} cannot be used: {error}") from error
    if study.user_attrs.get("recipe", search.recipe) != search.recipe:
        raise FSVIError(f"the study {name} belongs to another version of the recipe: choose another --out.")
    if "recipe" not in study.user_attrs:
        study.set_user_attr("recipe", search.recipe)
        study.enqueue_trial({}, user_attrs={"is_recipe": True})
    return study


def _ended(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    return study.get_trials(states=(TrialState.COMPLETE, TrialState.PRUNED))


class _Search:
    """What is searched around a recipe, and how a choice is evaluated."""

    def __init__(self, order: Order, contexts: tuple[str, ...], splits: int) -> None:
        self.order, self.contexts, self.splits = order, contexts, splits
        if order.member not in SPACES:
            raise InvalidInputError(f"{order.method!r} has no search space: choose one of {', '.join(SPACES)}.")
        experiment = TASKS[order.task].experiment(order)
        if not experiment.is_diagnosed or experiment.starts:
            raise InvalidInputError(
                f"{order.task!r} with {order.method!r} cannot be tuned at profile={order.profile!r}: it is a sequence "
                "of tasks, or starts from a network that has seen the data that would be held out."
            )
        made: Any = experiment.build(order.seed)
        self.method: Method = made.members[0] if order.method != order.member else made
        self.rate = experiment.fit_settings.get("lr")
        settings = {"method": self.method.config()["settings"], "fit": recorded(experiment.fit_settings)}
        self.recipe = json.loads(json.dumps(settings))

    def value(self, trial: Trial) -> float:
        """The mean log-likelihood of the held-out data, over splits."""
        chosen = self.order if trial.user_attrs.get("is_recipe") else self._choose(trial)
        scores: list[float] = []
        for seed in range(self.order.seed, self.order.seed + self.splits):
            try:
                scores.append(self._score(replace(chosen, seed=seed), trial, scores))
            except (NonFiniteLossError, SingularCovarianceError) as error:
                raise TrialPruned(str(error)) from error
        mean = sum(scores) / len(scores)
        if not math.isfinite(mean):
            raise TrialPruned(f"the log-likelihood is {mean}")
        return mean

    def _choose(self, trial: Trial) -> Order:
        settings, fit_settings, context = dict(self.order.settings), dict(self.order.fit_settings), self.order.context
        for name, each in SPACES[self.order.member].items():
            if isinstance(each, tuple):
                value: Any = trial.suggest_float(name, *each, log=True)
            else:
                value = trial.suggest_categorical(name, each)
            argument, _, part = name.partition(".")
            settings[argument] = self._rebuilt(argument, part, value) if part else value
        if self.rate is not None:
            fit_settings["lr"] = trial.suggest_float("lr", self.rate / 4, self.rate * 4, log=True)
        if self.contexts:
            context = trial.suggest_categorical("context", self.contexts)
        return replace(self.order, settings=settings, fit_settings=fit_settings, context=context)

    def _rebuilt(self, argument: str, part: str, value: float) -> Any:
        """The object that the recipe's method has as `argument`, with another value of its setting `part`."""
        config = getattr(self.method, argument).config()
        return Configurable.from_config({**config, "settings": {**config["settings"], part: value}})

    def _score(self, order: Order, trial: Trial, earlier: list[float]) -> float:
        """The held-out log-likelihood; a trial worse than the median of the others during its training is pruned."""
        experiment, (x, y) = held_out(TASKS[order.task].experiment(order), order.seed)
        method = experiment.build(order.seed)

        def watch(state: TrainingState) -> None:
            moment, before = (epoch * _REPORTS // state.epochs for epoch in (state.epoch, state.epoch - 1))
            if moment == before or state.epoch == state.epochs:
                return
            # Some methods cannot predict before training has ended.
            with suppress(InvalidInputError), torch.random.fork_rng(devices=[]):
                score = log_likelihood(method, x[:1000], y[:1000], 8)
                trial.report((sum(earlier) + score) / (len(earlier) + 1), _REPORTS * len(earlier) + moment)
                if trial.should_prune():
                    raise TrialPruned(f"at {moment / _REPORTS:.0%} of training it was worse than the median")

        experiment.train(method, order.seed, progress=False, device=order.device, callbacks=[watch])
        return log_likelihood(method, x, y, 16)

    def summary(self, study: optuna.Study) -> dict[str, Any]:
        """The study as plain values: the search, its trials, and the best one."""
        order, ended = self.order, _ended(study)
        done = [trial for trial in ended if trial.state == TrialState.COMPLETE]
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
                {"value": trial.value if trial in done else None, "state": trial.state.name.lower(), **trial.params}
                for trial in ended
            ],
        }
