"""`fsvi diagnose`: look at the model that a run left beside its result."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from fsvi.diagnosis import Diagnosis, diagnose
from fsvi.errors import InvalidInputError
from fsvi.experiments.experiment import Order
from fsvi.experiments.results import read_result
from fsvi.experiments.runs import model_path
from fsvi.experiments.tasks import TASKS
from fsvi.methods import load
from fsvi.training import History

_EXAMPLES = 500


def diagnose_result(path: Path) -> Diagnosis:
    """Diagnose the model of the result at `path`, on examples of its training data and at its own context."""
    result = read_result(path)
    model = model_path(path.parent.parent, path)
    if not model.exists():
        raise InvalidInputError(f"{model} is not there: the model is kept where the run was made, so run it again.")
    order = Order(result.task, result.method, cast(Any, result.profile), result.seed, result.context)
    experiment = TASKS[order.task].recipe(order)
    fresh = experiment.build(order.seed)
    x, y = (values[:_EXAMPLES] for values in experiment.data)
    terms = {name: list(values) for name, values in result.history.items() if name not in ("loss", "validation")}
    history = History(loss=list(result.history["loss"]), terms=terms)
    return diagnose(load(model, fresh.net), (x, y), getattr(fresh, "context", None), history)
