"""`fsvi tune`: the paper's protocol for hyperparameters, by a tenth of the training data held out, or the task's own
validation data.

Test data cannot be seen here: only `Experiment.evaluate` loads any, and nothing in this module calls it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fsvi.data import splits
from fsvi.errors import FSVIError, InvalidInputError, NonFiniteLossError, SingularCovarianceError
from fsvi.experiments.experiment import Experiment, Order
from fsvi.experiments.results import result_path
from fsvi.experiments.runs import checked
from fsvi.experiments.tasks import TASKS
from fsvi.functions.priors import Constant
from fsvi.serialization import check_writable, write_bytes
from fsvi.validation import check_count

if TYPE_CHECKING:
    from optuna import Study, Trial

_HELD_OUT = 0.1
_SAMPLES = 16
_OBJECTIVE = "objective"

Suggest = Callable[["Trial"], Any]

_PARAMETER_SPACE: dict[str, Suggest] = {
    "prior_variance": lambda trial: trial.suggest_float("prior_variance", 1e-3, 10.0, log=True),
    "num_samples": lambda trial: trial.suggest_categorical("num_samples", [1, 5]),
}
SPACES: dict[str, dict[str, Suggest]] = {
    "fsvi": {
        "prior": lambda trial: Constant(trial.suggest_float("prior_variance", 0.1, 100.0, log=True)),
        "num_context": lambda trial: trial.suggest_categorical("num_context", [4, 8, 16, 32, 64]),
        "kl_weight": lambda trial: trial.suggest_float("kl_weight", 1e-5, 1e-1, log=True),
        "num_samples": lambda trial: trial.suggest_categorical("num_samples", [1, 5]),
    },
    "map": {"prior_variance": lambda trial: trial.suggest_float("prior_variance", 1e-3, 1e3, log=True)},
    "mfvi": _PARAMETER_SPACE,
    "mfvi-tempered": _PARAMETER_SPACE,
    "mfvi-radial": _PARAMETER_SPACE,
    "mc-dropout": {"rate": lambda trial: trial.suggest_float("rate", 0.01, 0.5)},
}
"""What is searched for each method, by the name of its argument."""


def tune(
    order: Order, out: Path, trials: int, contexts: tuple[str, ...] = (), tell: Callable[[str], None] = print
) -> dict[str, Any]:
    """Search until the study in the folder `out` has `trials` trials; returns its summary, which is written there too.

    The study is kept in a file after every trial, and goes on from there. `contexts` are searched as well. Another
    seed or other contexts make another study.
    """
    order = checked(order)
    for context in contexts:
        checked(replace(order, context=context))
    contexts = tuple(sorted(set(contexts)))  # since Optuna tells searches by the order of their choices
    check_count("trials", trials)
    study, path = _open_study(order, contexts, check_writable(out))
    for number in range(len(study.trials), trials):
        study.optimize(lambda trial: _value(trial, order, contexts), n_trials=1)
        tell(f"trial {number + 1}/{trials}: {_line(study)}")
        write_bytes(path, (json.dumps(summarise(study, order, contexts), indent=1) + "\n").encode())
    return summarise(study, order, contexts)


def summarise(study: Study, order: Order, contexts: tuple[str, ...] = ()) -> dict[str, Any]:
    """The study as plain values: what was asked, what was tried, what it gave, what was best."""
    done = [trial for trial in study.trials if trial.value is not None]
    best = max(done, key=lambda trial: trial.value or -math.inf, default=None)
    return {
        "task": order.task,
        "method": order.method,
        "profile": order.profile,
        "seed": order.seed,
        "contexts": list(contexts) or ([] if order.context is None else [order.context]),
        "objective": study.user_attrs.get(_OBJECTIVE),
        "best": None if best is None else {"value": best.value, **best.params},
        "trials": [{"value": trial.value, "state": trial.state.name.lower(), **trial.params} for trial in study.trials],
    }


def held_out(experiment: Experiment, seed: int) -> tuple[Experiment, tuple[Tensor, Tensor]]:
    """The experiment on nine tenths of its training data and the tenth that is left, or its own validation data."""
    if experiment.validation is not None:
        return experiment, experiment.validation()
    x, y = experiment.data
    train, rest = splits(len(x), _HELD_OUT, seed)
    return replace(experiment, data=(x[train], y[train])), (x[rest], y[rest])


def _describe_objective(experiment: Experiment) -> str:
    part = f"a held-out {_HELD_OUT:.0%} of the training data"
    return f"mean log-likelihood of {part if experiment.validation is None else 'the validation data of the task'}"


def _value(trial: Trial, order: Order, contexts: tuple[str, ...]) -> float:
    from optuna import TrialPruned

    context = trial.suggest_categorical("context", contexts) if contexts else order.context
    settings = {name: suggest(trial) for name, suggest in SPACES[order.member].items()}
    order = replace(order, context=context, settings={**order.settings, **settings})
    whole = TASKS[order.task].recipe(order)
    trial.study.set_user_attr(_OBJECTIVE, _describe_objective(whole))
    experiment, (x, y) = held_out(whole, order.seed)
    method = experiment.build(order.seed)
    try:
        experiment.train(method, order.seed, progress=False)
    except (NonFiniteLossError, SingularCovarianceError) as error:
        raise TrialPruned(str(error)) from error
    return float(method.predict(x, num_samples=_SAMPLES).log_prob(y).mean())


def _open_study(order: Order, contexts: tuple[str, ...], out: Path) -> tuple[Study, Path]:
    if order.member not in SPACES:
        raise InvalidInputError(f"there is no search space for {order.method!r}: there are {', '.join(SPACES)}.")
    try:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend
    except ImportError as error:
        raise FSVIError("tuning needs Optuna: pip install optuna.") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    row = replace(order, context="+".join(contexts) or order.context)
    name = f"{order.task}.{result_path(out, row).stem}"
    storage = JournalStorage(JournalFileBackend(str(out / f"{name}.log")))
    study = optuna.create_study(storage=storage, study_name=name, direction="maximize", load_if_exists=True)
    study.sampler = optuna.samplers.TPESampler(seed=order.seed + len(study.trials))
    return study, out / f"{name}.json"


def _line(study: Study) -> str:
    last = study.trials[-1]
    value = "failed" if last.value is None else f"{last.value:.4f}"
    return f"{value}  {last.params}"
