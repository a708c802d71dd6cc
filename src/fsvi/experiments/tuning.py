"""`fsvi tune`: the paper's protocol for hyperparameters, by a tenth of the training data held out, or the task's own
validation data.

Test data cannot be seen here: only `Experiment.evaluate` loads any, and nothing in this module calls it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fsvi import data
from fsvi.errors import FSVIError, InvalidInputError, NonFiniteLossError, SingularCovarianceError
from fsvi.experiments.experiment import Experiment, Order
from fsvi.experiments.results import result_path
from fsvi.experiments.runs import checked, trains_together
from fsvi.experiments.tasks import TASKS
from fsvi.functions.priors import Constant
from fsvi.methods import FSVI, Ensemble
from fsvi.serialization import check_writable, write_bytes
from fsvi.training.together import fit_together
from fsvi.validation import check_count

if TYPE_CHECKING:
    from optuna import Study, Trial

_HELD_OUT = 0.1
_SAMPLES, _SMALL_SAMPLES = 16, 100
"""draws that a prediction is made from, and where networks are small"""
_OBJECTIVE = "objective"


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, searched on a logarithmic scale unless `linear`."""

    low: float
    high: float
    linear: bool = False

    def suggest(self, trial: Trial, name: str) -> Any:
        """A value for a trial."""
        return trial.suggest_float(name, self.low, self.high, log=not self.linear)

    def has(self, value: Any) -> bool:
        """Whether the value can be suggested."""
        return isinstance(value, (int, float)) and self.low <= value <= self.high


@dataclass(frozen=True)
class Choice:
    """One of some values."""

    values: tuple[Any, ...]

    def suggest(self, trial: Trial, name: str) -> Any:
        """A value for a trial."""
        return trial.suggest_categorical(name, self.values)

    def has(self, value: Any) -> bool:
        """Whether the value can be suggested."""
        return value in self.values


Space = Mapping[str, Range | Choice]

_VARIANCE = "prior_variance"
_LENGTH = "length"
_PARAMETER_SPACE: Space = {_VARIANCE: Range(1e-3, 10.0), "num_samples": Choice((1, 5))}
SPACES: dict[str, Space] = {
    "fsvi": {
        _VARIANCE: Range(0.1, 100.0),
        "num_context": Choice((4, 8, 16, 32, 64)),
        "kl_weight": Range(1e-5, 1e-1),
        "num_samples": Choice((1, 5)),
    },
    "map": {_VARIANCE: Range(1e-3, 1e3)},
    "mfvi": _PARAMETER_SPACE,
    "mfvi-tempered": _PARAMETER_SPACE,
    "mfvi-radial": _PARAMETER_SPACE,
    "mc-dropout": {"rate": Range(0.01, 0.5, linear=True)},
}
"""What is searched for each method: its arguments, where FSVI's `prior_variance` is that of a constant prior."""
_SMALL_SPACES: dict[str, Space] = {
    "fsvi": {
        "num_context": Choice((8, 16, 32, 64)),
        "num_samples": Choice((1, 4, 16)),
        "linearize": Choice(("jvp", "exact")),
    },
}
"""What is searched instead, or as well, where networks are so small that seeds are trained together."""
_LENGTHS = Choice((0.25, 0.5, 1.0, 2.0))
"""How many times as long as in the recipe such a network may be trained."""


def tune(
    order: Order,
    out: Path,
    trials: int,
    contexts: tuple[str, ...] = (),
    tell: Callable[[str], None] = print,
    splits: int = 1,
) -> dict[str, Any]:
    """Search until the study in the folder `out` has `trials` trials; returns its summary, which is written there too.

    The study is kept in a file after every trial, and goes on from there. `contexts` are searched as well. The value of
    a trial is the mean over so many random `splits`, of the order's seed and those that follow. The first trial has the
    recipe's own settings, as far as the search can reach them. Another seed, other contexts or another number of splits
    make another study.
    """
    order = checked(order)
    for context in contexts:
        checked(replace(order, context=context))
    contexts = tuple(sorted(set(contexts)))  # since Optuna tells searches by the order of their choices
    check_count("trials", trials)
    check_count("splits", splits)
    search = _Search(order, contexts, splits)
    study, path = _open_study(search, check_writable(out))
    if not study.trials:
        study.enqueue_trial(search.recipe_params())
    begun = [trial for trial in study.trials if trial.state.name != "WAITING"]
    for number in range(len(begun), trials):
        try:
            study.optimize(search.value, n_trials=1)
        except ValueError as error:
            if "dynamic value space" not in str(error):
                raise
            raise FSVIError(f"the study beside {path} is of another search space: choose another --out.") from error
        tell(f"trial {number + 1}/{trials}: {_line(study)}")
        write_bytes(path, (json.dumps(search.summarise(study), indent=1) + "\n").encode())
    return search.summarise(study)


def held_out(experiment: Experiment, seed: int) -> tuple[Experiment, tuple[Tensor, Tensor]]:
    """The experiment on nine tenths of its training data and the tenth that is left, or its own validation data."""
    if experiment.validation is not None:
        return experiment, experiment.validation()
    x, y = experiment.data
    train, rest = data.splits(len(x), _HELD_OUT, seed)
    return replace(experiment, data=(x[train], y[train])), (x[rest], y[rest])


@dataclass(frozen=True)
class _Search:
    """What is searched, and how a choice is measured."""

    order: Order
    contexts: tuple[str, ...]
    splits: int

    @property
    def space(self) -> Space:
        """What is searched, by name."""
        member = self.order.member
        small = {**_SMALL_SPACES.get(member, {}), _LENGTH: _LENGTHS} if self.is_small else {}
        return {**SPACES[member], **small, **({"context": Choice(self.contexts)} if self.contexts else {})}

    @property
    def is_small(self) -> bool:
        """Whether seeds are trained together."""
        return trains_together(self.order)

    def recipe_params(self) -> dict[str, Any]:
        """The recipe's own settings, as far as they are searched."""
        experiment = TASKS[self.order.task].recipe(self.order)
        made = experiment.build(self.order.seed)
        method = made.members[0] if isinstance(made, Ensemble) else made
        own = {
            **{name: getattr(method, name, None) for name in self.space},
            _LENGTH: 1.0,
            "context": self.order.context,
        }
        if isinstance(method, FSVI):
            own[_VARIANCE] = getattr(method.prior, "variance", None)
            bound = 1 / len(experiment.data[0])
            own["kl_weight"] = bound if method.kl_weight is None else method.kl_weight
        return {name: own[name] for name, choices in self.space.items() if choices.has(own[name])}

    def value(self, trial: Trial) -> float:
        """The mean log-likelihood of what is held out."""
        from optuna import TrialPruned

        params = {name: choices.suggest(trial, name) for name, choices in self.space.items()}
        context, length = params.pop("context", self.order.context), params.pop(_LENGTH, 1.0)
        if self.order.member == "fsvi":
            params["prior"] = Constant(params.pop(_VARIANCE))
        settings = {**self.order.settings, **params}
        seeds = range(self.order.seed, self.order.seed + self.splits)
        orders = [replace(self.order, context=context, settings=settings, seed=seed) for seed in seeds]
        try:
            scores = self._scores(orders, length) if self.is_small else [self._scores([o], length)[0] for o in orders]
        except (NonFiniteLossError, SingularCovarianceError) as error:
            raise TrialPruned(str(error)) from error
        trial.study.set_user_attr(_OBJECTIVE, self._describe_objective(TASKS[self.order.task].recipe(orders[0])))
        return sum(scores) / len(scores)

    def _scores(self, orders: Sequence[Order], length: float) -> list[float]:
        """The mean log-likelihood of what each order holds out, the orders trained together if there are several."""
        parts = [held_out(TASKS[order.task].recipe(order), order.seed) for order in orders]
        experiments = [_lengthened(experiment, length) for experiment, _ in parts]
        methods = [each.build(order.seed) for each, order in zip(experiments, orders, strict=True)]
        if len(orders) == 1:
            experiments[0].train(methods[0], orders[0].seed, progress=False)
        else:
            pairs = [experiment.data for experiment in experiments]
            fit_together(methods, pairs, seed=orders[0].seed, **experiments[0].fit_settings)
        samples = _SMALL_SAMPLES if self.is_small else _SAMPLES
        return [
            float(method.predict(x, num_samples=samples).log_prob(y).mean())
            for method, (_, (x, y)) in zip(methods, parts, strict=True)
        ]

    def summarise(self, study: Study) -> dict[str, Any]:
        """The study as plain values: what was asked, what was tried, what it gave, what was best."""
        order = self.order
        done = [trial for trial in study.trials if trial.value is not None]
        best = max(done, key=lambda trial: -math.inf if trial.value is None else trial.value, default=None)
        return {
            "task": order.task,
            "method": order.method,
            "profile": order.profile,
            "seed": order.seed,
            "splits": self.splits,
            "contexts": list(self.contexts) or ([] if order.context is None else [order.context]),
            "objective": study.user_attrs.get(_OBJECTIVE),
            "best": None if best is None else {"value": best.value, **best.params},
            "trials": [{"value": t.value, "state": t.state.name.lower(), **t.params} for t in study.trials],
        }

    def _describe_objective(self, experiment: Experiment) -> str:
        part = f"a held-out {_HELD_OUT:.0%} of the training data"
        what = f"mean log-likelihood of {part if experiment.validation is None else 'the validation data of the task'}"
        apart = "random splits" if experiment.validation is None else "seeds"
        return what if self.splits == 1 else f"{what}, over {self.splits} {apart}"


def _lengthened(experiment: Experiment, factor: float) -> Experiment:
    if factor == 1:
        return experiment
    epochs = max(1, round(factor * experiment.fit_settings["epochs"]))
    return replace(experiment, fit_settings={**experiment.fit_settings, "epochs": epochs})


def _open_study(search: _Search, out: Path) -> tuple[Study, Path]:
    order = search.order
    if order.member not in SPACES:
        raise InvalidInputError(f"there is no search space for {order.method!r}: there are {', '.join(SPACES)}.")
    try:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend
    except ImportError as error:
        raise FSVIError("tuning needs Optuna: pip install optuna.") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    row = replace(order, context="+".join(search.contexts) or order.context)
    name = f"{order.task}.{result_path(out, row).stem}" + (f"-{search.splits}" if search.splits > 1 else "")
    storage = JournalStorage(JournalFileBackend(str(out / f"{name}.log")))
    study = optuna.create_study(storage=storage, study_name=name, direction="maximize", load_if_exists=True)
    study.sampler = optuna.samplers.TPESampler(seed=order.seed + len(study.trials))
    return study, out / f"{name}.json"


def _line(study: Study) -> str:
    last = study.trials[-1]
    value = "failed" if last.value is None else f"{last.value:.4f}"
    return f"{value}  {last.params}"
