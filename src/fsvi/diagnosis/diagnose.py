"""Run all checks on a trained method."""

from __future__ import annotations

from typing import Any

from fsvi.diagnosis.beyond import check_context, check_distance
from fsvi.diagnosis.evidence import Evidence
from fsvi.diagnosis.findings import Diagnosis, Finding
from fsvi.diagnosis.learning import check_balance, check_learning
from fsvi.diagnosis.posterior import check_batch_norm, check_variance
from fsvi.diagnosis.predictions import check_calibration, check_samples
from fsvi.errors import InvalidInputError
from fsvi.inputs import is_structured
from fsvi.methods import Method
from fsvi.networks.devices import forked_random, seed_random
from fsvi.training import History
from fsvi.validation import check_count, check_type


def diagnose(
    method: Method,
    data: tuple[Any, Any],
    context: Any = None,
    history: History | None = None,
    num_samples: int = 10,
) -> Diagnosis:
    """Find problems with the uncertainty of a trained method.

    Checks that do not apply to the method or to its likelihood are left out. If the model has learned nothing, its
    predictions are not checked further.

    Args:
        method: The trained method.
        data: A pair (x, y), preferably held out.
        context: A context or inputs where the uncertainty should be large. None uses the method's own context.
        history: The return value of `fit`, if available.
        num_samples: The number of draws that your predictions use.

    Returns:
        The findings, each with a severity, a sentence and advice.
    """
    check_type("method", method, Method, "a trained method, such as fsvi.FSVI after fsvi.fit")
    check_count("num_samples", num_samples)
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        raise InvalidInputError(f"data is a {type(data).__name__}; a pair (x, y) is needed.")
    if is_structured(data[0]):
        raise InvalidInputError(
            "diagnose measures distances between inputs, so it needs inputs in one tensor, not a tuple or dictionary."
        )
    with forked_random(method.device):
        seed_random(0, method.device)
        method.check_batch(*data)
        if method.network.is_dense:
            raise InvalidInputError("diagnose needs one prediction per input, but the network has one per position.")
        seen = Evidence.gather(method, (data[0], data[1]), context, history, num_samples)
        return Diagnosis(tuple(finding for finding in _findings(seen) if finding is not None))


def _findings(seen: Evidence) -> list[Finding | None]:
    balance = check_balance(seen)
    structure = [balance, check_variance(seen), check_context(seen), check_batch_norm(seen)]
    if balance is not None and balance.severity == "fault":
        return structure  # the KL is the reason why nothing was learned
    learning = check_learning(seen)
    if learning is not None and learning.severity == "fault":
        return [learning, *structure]
    return [learning, *structure, check_distance(seen), check_samples(seen), check_calibration(seen)]
