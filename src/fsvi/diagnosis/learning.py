"""Has the method learned anything, and does the KL to the prior leave room for it?"""

from __future__ import annotations

from statistics import median
from typing import Any

import torch

from fsvi.diagnosis.evidence import Evidence
from fsvi.diagnosis.findings import Finding
from fsvi.errors import InvalidInputError
from fsvi.methods import Method
from fsvi.methods.kl_weight import temperature
from fsvi.networks.modes import evaluating

_HEAVY, _DOMINANT = 30.0, 10.0
"""Multiples of the weight in the evidence lower bound, and of the negative log-likelihood (at least one nat)."""


def check_learning(seen: Evidence) -> Finding | None:
    """Compare the log-likelihood of the predictions with that of the best constant prediction, if there is one."""
    if seen.constant_nll is None:
        return None
    values = {"nll": seen.nll, "constant_nll": seen.constant_nll}
    if seen.has_learned:
        sentence = (
            f"The negative log-likelihood is {seen.nll:.3f}; the best constant prediction has {seen.constant_nll:.3f}."
        )
        return Finding("learning", "ok", sentence, values=values)
    sentence = (
        f"The negative log-likelihood, {seen.nll:.3f}, is no better than that of the best constant prediction, "
        f"{seen.constant_nll:.3f}: the model is untrained, or training failed."
    )
    return Finding("learning", "fault", sentence, "Train it with fsvi.fit, for more epochs or with another lr.", values)


def check_balance(seen: Evidence) -> Finding | None:
    """Compare the weighted KL with the negative log-likelihood, over training or now, and check its weight."""
    member = seen.members[0]
    terms = _terms(seen)
    weight = _weight(member, seen)
    if terms is None or weight is None:
        return None
    nll, kl = terms
    share = kl / max(abs(nll), 1.0)
    when = "now" if seen.history is None else "over training (median)"
    sentence = (
        f"The KL term is {kl:.3g} and the negative log-likelihood {nll:.3g} {when}; the KL weighs {weight:.3g} times "
        "as much as in the evidence lower bound."
    )
    values = {"kl": kl, "nll": nll, "weight": weight}
    heavy = weight > _HEAVY or share > _DOMINANT
    if not heavy:
        return Finding("kl_balance", "ok", sentence, values=values)
    has_context = hasattr(member, "num_context")
    advice = f"Lower kl_weight (its default is the evidence lower bound's){', or num_context' if has_context else ''}."
    return Finding("kl_balance", "warning" if seen.has_learned_much else "fault", sentence, advice, values)


def _weight(method: Method, seen: Evidence) -> float | None:
    """The divergence's weight as a multiple of 1/N."""
    if not hasattr(method, "kl_weight"):
        return None
    kl_weight: Any = method.kl_weight
    return temperature(kl_weight, seen.num_data)


def _terms(seen: Evidence) -> tuple[float, float] | None:
    """`nll` and `kl`: medians over epochs, or one evaluation on the data."""
    if seen.history is not None:
        terms = seen.history.terms
        return (median(terms["nll"]), median(terms["kl"])) if terms.keys() >= {"nll", "kl"} else None
    member = seen.members[0]
    if _weight(member, seen) is None:
        return None
    try:
        with torch.no_grad(), evaluating(member.net):
            found = member.terms(seen.x, seen.y)
    except InvalidInputError:
        return None  # the data of its context were not saved
    return float(found["nll"]), float(found["kl"])
