"""`fsvi tune`: the paper's protocol for hyperparameters, on a held-out tenth of the training data or on the validation
data of the task.

Tuning cannot see test data: only `Experiment.evaluate` loads them, and nothing in this module calls it.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from fsvi.errors import FSVIError, InvalidInputError, NonFiniteLossError, SingularCovarianceError
from fsvi.methods import Ensemble, Method
from fsvi.methods.registry import METHODS
from fsvi.methods.search_space import Choice, Range, Space
from fsvi.networks.devices import forked_random
from fsvi.serialization import check_writable, write_bytes
from fsvi.training.stacked import fit_together
from fsvi.validation import LARGEST_SEED, check_count, check_positive, check_seed
from paper import data
from paper.experiment import CPU, Compute, Experiment, Order
from paper.records import result_path
from paper.runner.runs import can_stack, checked, recorded
from paper.tasks.continual import CONTINUAL_TASKS
from paper.tasks.registry import TASKS
from paper.tuning.parts import part_arguments, part_values, settings_of, with_parts
from paper.tuning.pruning import STARTUP, WARMUP, OutOfTimeError, Watch, time_limit
from paper.tuning.sharing import ENDED, REASON, SharedStudy
from paper.tuning.storage import Place

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

LENGTH = "length"
"""The length of training as a multiple of the recipe's, searched if networks are small; not an argument of a method."""
LENGTHS = Choice((0.25, 0.5, 1.0, 2.0))
RATE = "lr"
"""The learning rate, an argument of `fit`, searched around the recipe's where networks are not small."""
_RATE_FACTOR = 4.0
_HELD_OUT = 0.1
_SAMPLES, _SMALL_SAMPLES = 16, 100
"""Draws per prediction, in general and for small networks."""
_REPORTED, _REPORT_SAMPLES = 1000, 8
"""Examples and draws of a report during training."""
_OBJECTIVE, _RECIPE = "objective", "recipe"
"""Names of the attributes of a study."""
_POLL = 1.0


def tune(
    order: Order,
    out: Path,
    trials: int,
    contexts: tuple[str, ...] = (),
    tell: Callable[[str], None] = print,
    splits: int = 1,
    compute: Compute = CPU,
    storage: str | None = None,
    time_budget: float | None = None,
) -> dict[str, Any]:
    """Search until the study has `trials` trials; returns its summary, which is also written to the folder `out`.

    Several processes may work on one study at the same time: each makes the next trial, until all of them together
    have made `trials`. The study is written to its storage after every trial and resumes from there; the trial of an
    interrupted process is repeated. The first trial has the recipe's own settings, except for a context that is not in
    `contexts`. Another seed, other contexts or another number of splits make another study.

    A trial is pruned if, from 30% of its training on, it is worse than the median of the others at the same point, or
    if it takes five times as long as the median trial; at least five trials are made before.

    Args:
        order: The task, method, profile and first seed.
        out: The folder for the summary.
        trials: The number of trials of the whole study, including earlier ones and those of other processes.
        contexts: Contexts to choose from; none to keep the order's.
        tell: Receives a line for each trial.
        splits: The number of random splits over which the value of a trial is averaged, with successive seeds.
        compute: Where and how to train; only on the CPU in float32, splits are trained together.
        storage: A journal file, or the URL of a database that Optuna can use; None for a journal next to the summary.
        time_budget: Seconds after which this process stops; the trial that it makes then is repeated the next time.
    """
    order = checked(order)
    for context in contexts:
        checked(replace(order, context=context))
    contexts = tuple(sorted(set(contexts)))  # Optuna identifies a search by the order of its choices
    check_count("trials", trials)
    check_seed(order.seed + check_count("splits", splits) - 1)
    deadline = None if time_budget is None else time.monotonic() + check_positive("time_budget", time_budget)
    search = _Search(order, contexts, splits, compute)
    search.check()
    path = search.path(check_writable(out))
    place = Place(str(path.with_suffix(".log")) if storage is None else storage, out)
    shared = _open_study(search, path, place)
    with shared.at_work():
        _work(shared, search, path, trials, deadline, tell)
    summary = search.write_summary(shared.study, path)
    ended = len(summary["trials"])
    if ended < trials:
        tell(f"Time is up after {ended} of {trials} trials; the same command continues.")
    if summary["best"] is None:
        advice = "increase --time-budget" if ended < trials else "increase --trials"
        raise FSVIError(f"none of the {ended} trials in {path} could be trained: {advice}.")
    return summary


def _work(
    shared: SharedStudy, search: _Search, path: Path, trials: int, deadline: float | None, tell: Callable[[str], None]
) -> None:
    """Make trials until the study has enough of them, or time is up."""
    while (ended := len(shared.ended())) < trials and (deadline is None or time.monotonic() < deadline):
        with shared.place.explaining("stopped answering"), shared.place.turn():
            trial = shared.next_trial(trials)
        if trial is None:
            time.sleep(_POLL)  # other processes make the last trials; they may not finish them
            continue
        try:
            made = _try(shared, search, trial, path, deadline)
        except OutOfTimeError:
            with shared.place.turn():
                shared.give_back(trial)
            return
        ended = len(shared.ended())
        tell(f"trial {ended}/{trials}: {_line(made)}")
        with shared.place.turn():
            search.write_summary(shared.study, path)


def held_out(experiment: Experiment, seed: int) -> tuple[Experiment, tuple[Tensor, Tensor]]:
    """The experiment on nine tenths of its training data and the remaining tenth, or its own validation data.

    Args:
        experiment: The experiment.
        seed: The seed of the split.
    """
    if experiment.validation is not None:
        return experiment, experiment.validation()
    x, y = experiment.data
    train, rest = data.splits(len(x), _HELD_OUT, seed)
    return replace(experiment, data=(x[train], y[train])), (x[rest], y[rest])


@dataclass(frozen=True)
class _Search:
    """A search space, and how a choice is evaluated."""

    order: Order
    contexts: tuple[str, ...]
    splits: int
    compute: Compute = CPU

    def check(self) -> None:
        """Refuse methods without a search space, sequences of tasks, and recipes whose network saw the data."""
        if not METHODS[self.order.member].search:
            known = ", ".join(name for name, entry in METHODS.items() if entry.search)
            raise InvalidInputError(f"{self.order.method!r} has no search space: choose one of {known}.")
        if TASKS[self.order.task] in CONTINUAL_TASKS:
            raise InvalidInputError(f"{self.order.task!r} is a sequence of tasks, which cannot be tuned.")
        if self._recipe[0].starts:
            raise InvalidInputError(
                f"{self.order.method!r} starts from a trained network at profile={self.order.profile!r}, which has "
                "seen the data that would be held out: tune it at another profile."
            )

    def path(self, out: Path) -> Path:
        """The path of the summary."""
        row = replace(self.order, context="+".join(self.contexts) or self.order.context)
        name = f"{self.order.task}.{result_path(out, row).stem}" + (f"-{self.splits}" if self.splits > 1 else "")
        return out / f"{name}.json"

    @cached_property
    def space(self) -> Space:
        """The settings to search: those of the method, including the recipe's own values, and the contexts."""
        own = self._own
        space = {name: each.holding(own[name]) for name, each in self._listed.items() if name in own}
        return {**space, **({"context": Choice(self.contexts)} if self.contexts else {})}

    @property
    def _listed(self) -> Space:
        entry = METHODS[self.order.member]
        if self.is_small:
            return {**entry.search, **entry.small_search, LENGTH: LENGTHS}
        rate = self._recipe[0].fit_settings.get(RATE)
        return {**entry.search, **({} if rate is None else {RATE: Range(rate / _RATE_FACTOR, rate * _RATE_FACTOR)})}

    @cached_property
    def _recipe(self) -> tuple[Experiment, Method]:
        experiment = TASKS[self.order.task].experiment(self.order).computed(self.compute)
        made = experiment.build(self.order.seed)
        return experiment, made.members[0] if isinstance(made, Ensemble) else made

    def fixed(self) -> dict[str, Any]:
        """The settings that all trials share, such as the length of training; they make trials comparable."""
        experiment, method = self._recipe
        searched = {*self.space, *part_arguments(method)}
        settings = {name: value for name, value in settings_of(method).items() if name not in searched}
        fit = {name: value for name, value in experiment.fit_settings.items() if name not in searched}
        fixed = {"method": recorded(settings), "fit": recorded(fit)}
        return cast("dict[str, Any]", json.loads(json.dumps(fixed)))  # as the file of the study returns it

    @cached_property
    def _own(self) -> dict[str, Any]:
        """The recipe's own settings by name."""
        experiment, method = self._recipe
        own = {name: getattr(method, name) for name in self._listed if hasattr(method, name)}
        own |= {LENGTH: 1.0, RATE: experiment.fit_settings.get(RATE), "context": self.order.context}
        if "kl_weight" in own and own["kl_weight"] is None:
            own["kl_weight"] = 1 / len(experiment.data[0])
        return {**own, **part_values(method)}

    @property
    def is_small(self) -> bool:
        """Whether seeds are trained stacked."""
        return can_stack(self.order)

    def recipe_params(self) -> dict[str, Any]:
        """The searched settings with the recipe's own values."""
        return self.reachable(self._own)

    def reachable(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Those parameters that a trial can have."""
        return {name: params[name] for name, each in self.space.items() if name in params and each.has(params[name])}

    def objective(self) -> str:
        """The objective in words."""
        by_rows = self._recipe[0].validation is None
        part = f"a held-out {_HELD_OUT:.0%} of the training data" if by_rows else "the validation data of the task"
        apart = f", over {self.splits} {'random splits' if by_rows else 'seeds'}" if self.splits > 1 else ""
        return f"mean log-likelihood of {part}{apart}"

    def value(self, trial: Trial, watch: Watch) -> float:
        """The mean log-likelihood of the held-out data; `watch` may end the trial earlier."""
        from optuna import TrialPruned

        params = {name: choices.suggest(trial, name) for name, choices in self.space.items()}
        context, length = params.pop("context", self.order.context), params.pop(LENGTH, 1.0)
        rate = {RATE: params.pop(RATE)} if RATE in params else {}
        seeds = range(self.order.seed, self.order.seed + self.splits)
        chosen = {
            "context": context,
            "settings": {**self.order.settings, **with_parts(self._recipe[1], params)},
            "fit_settings": {**self.order.fit_settings, **rate},
        }
        orders = [replace(self.order, **chosen, seed=seed) for seed in seeds]
        try:
            scores = self._all_scores(orders, length, watch)
        except (NonFiniteLossError, SingularCovarianceError) as error:
            raise TrialPruned(str(error)) from error
        mean = sum(scores) / len(scores)
        if not math.isfinite(mean):
            raise TrialPruned(f"the log-likelihood is {mean}")
        return mean

    def _all_scores(self, orders: Sequence[Order], length: float, watch: Watch) -> list[float]:
        """The scores of all orders, trained stacked if networks are small."""
        if self.is_small and self.compute == CPU:
            return self._scores(orders, length, watch)
        scores: list[float] = []
        for order in orders:
            scores += self._scores([order], length, watch, scores)
        return scores

    def _scores(
        self, orders: Sequence[Order], length: float, watch: Watch, earlier: Sequence[float] = ()
    ) -> list[float]:
        """The mean log-likelihood of the held-out data of each order; several orders are trained stacked."""
        parts = [held_out(TASKS[order.task].experiment(order).computed(self.compute), order.seed) for order in orders]
        experiments = [_lengthened(experiment, length) for experiment, _ in parts]
        methods = [each.build(order.seed) for each, order in zip(experiments, orders, strict=True)]
        held = [(x, y) for _, (x, y) in parts]
        watch.begin(lambda: _mean_score(methods, held), earlier)
        if len(orders) == 1:
            experiments[0].train(
                methods[0], orders[0].seed, progress=False, device=self.compute.device, callbacks=[watch]
            )
        else:
            pairs = [experiment.data for experiment in experiments]
            epochs = experiments[0].fit_settings["epochs"]
            fit_together(
                methods,
                pairs,
                seed=orders[0].seed,
                after_epoch=lambda epoch: watch.report(epoch, epochs),
                **experiments[0].fit_settings,
            )
        samples = _SMALL_SAMPLES if self.is_small else _SAMPLES
        return [_score(method, x, y, samples) for method, (x, y) in zip(methods, held, strict=True)]

    def summarize(self, study: Study) -> dict[str, Any]:
        """The study as plain values: the search, its trials, and the best one."""
        order = self.order
        ended = [trial for trial in study.trials if trial.state.name in ENDED]
        done = [trial for trial in ended if trial.state.name == "COMPLETE"]
        best = max(done, key=lambda trial: -math.inf if trial.value is None else trial.value, default=None)
        return {
            "task": order.task,
            "method": order.method,
            "profile": order.profile,
            "seed": order.seed,
            "splits": self.splits,
            "contexts": list(self.contexts) or ([] if order.context is None else [order.context]),
            "objective": study.user_attrs.get(_OBJECTIVE),
            "recipe": study.user_attrs.get(_RECIPE),
            "best": None if best is None else {"value": best.value, **best.params},
            "trials": [
                {
                    "value": None if t.state.name == "PRUNED" else t.value,  # not that of its last report
                    "state": t.state.name.lower(),
                    **({REASON: t.user_attrs[REASON]} if REASON in t.user_attrs else {}),
                    **t.params,
                }
                for t in ended
            ],
        }

    def write_summary(self, study: Study, path: Path) -> dict[str, Any]:
        """Write the summary and return it."""
        summary = self.summarize(study)
        write_bytes(path, (json.dumps(summary, indent=1) + "\n").encode())
        return summary


def _lengthened(experiment: Experiment, factor: float) -> Experiment:
    if factor == 1:
        return experiment
    epochs = max(1, round(factor * experiment.fit_settings["epochs"]))
    return replace(experiment, fit_settings={**experiment.fit_settings, "epochs": epochs})


def _open_study(search: _Search, path: Path, place: Place) -> SharedStudy:
    """The study. A new one starts with the recipe's settings; trials of interrupted processes are queued again."""
    with place.turn(), place.explaining("cannot be used"):
        storage = place.open()
        import optuna

        study = optuna.create_study(
            storage=storage,
            study_name=path.stem,
            direction="maximize",
            load_if_exists=True,
            pruner=optuna.pruners.MedianPruner(STARTUP, WARMUP),
        )
        shared = SharedStudy(study, place, search.reachable)
        if study.user_attrs.get(_RECIPE, search.fixed()) != search.fixed():
            raise FSVIError(f"the study of {path} belongs to another version of the recipe: choose another --out.")
        if _RECIPE not in study.user_attrs:
            study.set_user_attr(_OBJECTIVE, search.objective())
            study.set_user_attr(_RECIPE, search.fixed())
        shared.repeat_interrupted()
        if all(trial.state.name == "FAIL" for trial in study.trials):
            study.enqueue_trial(search.recipe_params())
    return shared


def _try(shared: SharedStudy, search: _Search, trial: Trial, path: Path, deadline: float | None) -> FrozenTrial:
    """Make one trial. An interrupted trial stays marked as running; it is repeated later, or by another process."""
    from optuna import TrialPruned
    from optuna.samplers import TPESampler
    from optuna.trial import TrialState

    study = shared.study
    # A seed per trial: workers do not draw the same settings, and an interruption changes none.
    study.sampler = TPESampler(seed=(search.order.seed + trial.number) % (LARGEST_SEED + 1))
    watch = Watch(trial, time_limit(study.trials), deadline)
    try:
        with shared.pulse(trial):
            value = search.value(trial, watch)
    except TrialPruned as reason:
        trial.set_user_attr(REASON, str(reason))
        return study.tell(trial, state=TrialState.PRUNED)
    except OutOfTimeError:
        raise
    except Exception as error:
        study.tell(trial, state=TrialState.FAIL)
        if "dynamic value space" in str(error):
            raise FSVIError(f"the study of {path} has another search space: choose another --out.") from error
        raise
    return study.tell(trial, value)


def _score(method: Method, x: Any, y: Tensor, samples: int) -> float:
    return float(method.predict(x, num_samples=samples).log_prob(y).mean())


def _mean_score(methods: Sequence[Method], held: Sequence[tuple[Any, Tensor]]) -> float:
    """The mean log-likelihood of a part of the held-out data during training, with few draws."""
    with forked_random(methods[0].device):
        scores = [
            _score(method, x[:_REPORTED], y[:_REPORTED], _REPORT_SAMPLES)
            for method, (x, y) in zip(methods, held, strict=True)
        ]
    return sum(scores) / len(scores)


def _line(trial: FrozenTrial) -> str:
    pruned = trial.state.name == "PRUNED"
    return f"{f'pruned, {trial.user_attrs[REASON]}' if pruned else f'{trial.value:.4f}'}  {trial.params}"
