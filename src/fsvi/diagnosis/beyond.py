"""Does the uncertainty grow away from the data, and does the context reach there?"""

from __future__ import annotations

import torch
from torch import Tensor

from fsvi.diagnosis.evidence import Evidence, distances
from fsvi.diagnosis.findings import Finding, Severity
from fsvi.methods import MAP

_QUANTILE = 0.95
_LEAST_LEAVING, _FEW_LEAVING = 0.15, 0.3
_LEAST_RANK, _LOW_RANK = 0.0, 0.3
_LEAST_GROWTH = 1.05


def check_context(seen: Evidence) -> Finding | None:
    """Count the context points that are further from the data than the data are from each other."""
    if seen.context is None or len(seen.few) < 3 or not seen.x.is_floating_point():
        return None
    own = distances(seen.few, seen.few, own=True)
    reach = float(own.quantile(_QUANTILE))
    share = float((distances(seen.context, seen.few) > reach).double().mean())
    sentence = (
        f"{share:.0%} of {len(seen.context)} context points are further from the data than {_QUANTILE:.0%} of the "
        f"data are from each other ({reach:.3g})."
    )
    severity: Severity = "fault" if share < _LEAST_LEAVING else "warning" if share < _FEW_LEAVING else "ok"
    advice = (
        "The prior acts only where there are data already: choose a context= that leaves the data, such as "
        "contexts.Uniform(widen=0.5), or other inputs with contexts.Dataset."
    )
    return Finding("context", severity, sentence, "" if severity == "ok" else advice, {"share": share, "reach": reach})


def check_distance(seen: Evidence) -> Finding | None:
    """Correlate uncertainty with the distance to the nearest datum, at data, context points and beyond."""
    if not seen.x.is_floating_point() or len(seen.few) < 3:
        return None
    away = seen.pushed if seen.context is None else torch.cat([seen.context, seen.pushed])
    near, far = (seen.predict(x).score.double().cpu() for x in (seen.few, away))
    lengths = torch.cat([distances(seen.few, seen.few, own=True), distances(away, seen.few)]).cpu()
    rank = rank_correlation(lengths, torch.cat([near, far]))
    growth = float(far.mean() / near.mean().clamp_min(1e-12))
    sentence = (
        f"Uncertainty is {float(near.mean()):.3g} at the data and {float(far.mean()):.3g} away from them; its rank "
        f"correlation with the distance is {rank:.2f}."
    )
    useless = growth < _LEAST_GROWTH or rank < _LEAST_RANK
    severity: Severity = "fault" if useless else "warning" if rank < _LOW_RANK else "ok"
    values = {"near": float(near.mean()), "far": float(far.mean()), "rank": rank}
    return Finding("distance", severity, sentence, "" if severity == "ok" else _advise(seen), values)


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's correlation, with average ranks for ties; 0 if one of them is constant.

    Args:
        a: Numbers, (n,).
        b: Numbers, (n,).
    """
    a, b = _ranks(a), _ranks(b)
    a, b = a - a.mean(), b - b.mean()
    norm = float(a.norm() * b.norm())
    return float(a @ b) / norm if norm > 0 else 0.0


def _ranks(values: Tensor) -> Tensor:
    _, index, counts = values.unique(return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()
    return (ends - 0.5 * (counts - 1))[index]


def _advise(seen: Evidence) -> str:
    if isinstance(seen.method, MAP):
        return (
            "A single network has no uncertainty about its function: use FSVI, an Ensemble, or another method that has."
        )
    if seen.context is None:
        return "Nothing constrains the function away from the data: use FSVI with a context= that covers such inputs."
    return "Choose a context= that covers such inputs, raise num_context or kl_weight, or train longer."
