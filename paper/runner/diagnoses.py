"""Diagnoses of runs: made at the end of a run or by `fsvi diagnose`, and kept next to the result for `fsvi report`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from fsvi.diagnosis import Diagnosis, Finding, diagnose
from fsvi.diagnosis.findings import LEVELS
from fsvi.errors import FileFormatError, InvalidInputError
from fsvi.methods import Method, load
from fsvi.networks.devices import find_device
from fsvi.serialization import building_from
from fsvi.training import History
from fsvi.validation import check_choice, check_type
from paper.experiment import Experiment, Order
from paper.records import DIAGNOSIS, Result, model_path, read_document, read_result, write_document
from paper.tasks.registry import TASKS

_EXAMPLES = 500


def diagnose_result(path: Path, device: str | None = None) -> Diagnosis:
    """Diagnose the model of the result at `path`, on examples of its training data and with its own context.

    The diagnosis is written next to the result if the folder is writable. `device` is where to predict, None for the
    CPU.
    """
    result = read_result(path)
    model = model_path(path.parent.parent, path)
    if not model.exists():
        raise InvalidInputError(
            f"there is no model {model}: models stay on the machine that made the run, so run it again."
        )
    order = Order(result.task, result.method, cast(Any, result.profile), result.seed, result.context)
    with building_from(path):
        experiment = TASKS[check_choice("task", order.task, TASKS)].experiment(order)
        fresh = experiment.build(order.seed)
    method = load(model, fresh.net)
    check_type("the model", method, Method, "a method without calibration, as runs save it")
    if device is not None:
        cast(Method, method).to(find_device(device))
    diagnosis = diagnose_trained(cast(Method, method), experiment, result, getattr(fresh, "context", None))
    with suppress(InvalidInputError):
        write_diagnosis(diagnosis_path(path), diagnosis)
    return diagnosis


def diagnose_trained(method: Method, experiment: Experiment, result: Result, context: Any = None) -> Diagnosis:
    """Diagnose a trained method on examples of its training data.

    Args:
        method: The method.
        experiment: The experiment that it was trained in.
        result: Its result, with the history of training.
        context: The context; None is the method's own.
    """
    if not experiment.is_diagnosed:
        raise InvalidInputError(f"runs of {result.task!r} cannot be diagnosed: their data come as a sequence of tasks.")
    x, y = (values[:_EXAMPLES] for values in experiment.data)
    columns = {name: _numbers(values) for name, values in result.history.items()}
    loss = columns.pop("loss", [])
    terms = {name: values for name, values in columns.items() if name != "validation"}
    return diagnose(method, (x, y), context, History(loss=loss, terms=terms))


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


# Files --------------------------------------------------------------------------------------------------------------


def diagnosis_path(result: Path) -> Path:
    """The path of a result's diagnosis."""
    return result.with_suffix(DIAGNOSIS)


def write_diagnosis(path: Path, diagnosis: Diagnosis) -> None:
    """Replace the file atomically.

    Args:
        path: The file.
        diagnosis: The diagnosis.
    """
    write_document(path, diagnosis.to_dict())


def read_diagnosis(path: Path) -> Diagnosis:
    """Read a file that `write_diagnosis` wrote; anything else is refused with the name of the file."""
    document = read_document(path, "diagnosis")
    try:
        findings = [Finding(**_renamed(each)) for each in document["findings"]]
    except (KeyError, TypeError) as error:
        raise FileFormatError(f"{path} is not a diagnosis that this version of fsvi can read: delete it.") from error
    if not all(map(_is_readable, findings)):
        raise FileFormatError(f"{path} has a finding of the wrong form: delete it.")
    if any(finding.level not in LEVELS for finding in findings):
        raise FileFormatError(f"{path} has a finding of unknown level: delete it.")
    return Diagnosis(tuple(findings))


def _renamed(finding: Mapping[str, Any]) -> dict[str, Any]:
    """A finding of the committed results, which call levels severities."""
    names = {"severity": "level", "values": "numbers"}
    renamed = {names.get(name, name): value for name, value in finding.items()}
    return {**renamed, "level": {"fault": "no", "warning": "care"}.get(str(renamed.get("level")), renamed.get("level"))}


def _is_readable(finding: Finding) -> bool:
    texts = (finding.name, finding.sentence, finding.advice)
    return all(isinstance(text, str) for text in texts) and bool(finding.name) and isinstance(finding.numbers, Mapping)
