"""Does a prediction have enough draws, and is its confidence justified?"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fsvi.diagnosis.evidence import Evidence
from fsvi.diagnosis.findings import Finding, Severity
from fsvi.errors import InvalidInputError
from fsvi.likelihoods import Predictive
from fsvi.metrics import coverage, reliability

_GROUPS = 5
_TOO_NOISY, _NOISY = 0.5, 0.25
"""multiples of the spread"""
_NEGLIGIBLE = 0.05
"""a multiple of the mean uncertainty"""
_BINS = 10
_MISCALIBRATED, _SLIGHTLY = 0.15, 0.05
_LEVELS = (0.5, 0.9)


def check_samples(seen: Evidence) -> Finding | None:
    """Compare the Monte-Carlo error of the uncertainty, from disjoint sets of draws, with its spread over inputs."""
    x = seen.few if seen.context is None else torch.cat([seen.few, seen.context])
    p = seen.predict(x, _GROUPS * seen.num_samples)
    if len(p.samples) != _GROUPS * seen.num_samples:
        return None  # the method decides the number of draws
    whole = p.score
    parts = torch.stack([p.draws(slice(first, None, _GROUPS)).score for first in range(_GROUPS)])
    error = float((parts - whole).square().mean().sqrt())
    spread = max(float(whole.std()), 1e-12)
    sentence = (
        f"With num_samples={seen.num_samples} the uncertainty of a prediction has a Monte-Carlo error of {error:.2g}, "
        f"{error / spread:.2f} of its spread over inputs ({spread:.2g})."
    )
    matters = error > _NEGLIGIBLE * float(whole.mean())
    too_noisy = error > _TOO_NOISY * spread or seen.num_samples == 1
    severity: Severity = "ok"
    if matters and error > _NOISY * spread:
        severity = "fault" if too_noisy else "warning"
    needed = math.ceil(seen.num_samples * (error / (_NOISY * spread)) ** 2)
    advice = "" if severity == "ok" else f"Predict with num_samples={max(needed, 10)} or more."
    return Finding("samples", severity, sentence, advice, {"error": error, "spread": spread})


def check_calibration(seen: Evidence) -> Finding | None:
    """Compare confidence with accuracy, or intervals with their coverage; None for other kinds of predictions."""
    p = seen.prediction
    if p.is_numeric:
        observed = ~seen.y.isnan().any(1)
        return _check_intervals(p[observed], seen.y[observed]) if bool(observed.any()) else None
    try:
        classes = p.class_probabilities().shape[1]
    except InvalidInputError:
        return None
    y = seen.y.flatten()
    hard = (y == y.round()) & (y >= 0) & (y < classes) if seen.y.numel() == len(p) else torch.zeros(len(p)) > 0
    return _check_confidence(p[hard], y[hard].long()) if bool(hard.any()) else None


def _check_confidence(p: Predictive, y: Tensor) -> Finding:
    bins = reliability(p, y, _BINS)
    chance = bins.accuracy.nan_to_num(0.5)
    noise = (bins.count * chance * (1 - chance)).sqrt() * math.sqrt(2 / math.pi) / bins.count.sum()
    excess = bins.ece - float(noise.sum())
    gaps = (bins.confidence - bins.accuracy).nan_to_num(0.0)
    worst = int((bins.count * gaps.abs()).argmax())
    kind = "overconfident" if float((bins.count * gaps).sum()) > 0 else "underconfident"
    sentence = (
        f"The expected calibration error is {bins.ece:.3f} on {int(bins.count.sum())} inputs, {kind} on average; the "
        f"worst bin has confidence {float(bins.confidence[worst]):.2f} and accuracy {float(bins.accuracy[worst]):.2f} "
        f"({int(bins.count[worst])} inputs)."
    )
    return _calibration(sentence, excess, kind, {"ece": bins.ece})


def _check_intervals(p: Predictive, y: Tensor) -> Finding:
    found = {level: coverage(p, y, level) for level in _LEVELS}
    gaps = {level: level - share for level, share in found.items()}
    worst = max(gaps, key=lambda level: abs(gaps[level]))
    noise = 2 * math.sqrt(worst * (1 - worst) / len(y))
    kind = "overconfident" if gaps[worst] > 0 else "underconfident"
    shares = ", ".join(f"{share:.0%} of targets in the {level:.0%} interval" for level, share in found.items())
    values = {f"coverage_{level:.0%}".rstrip("%"): share for level, share in found.items()}
    return _calibration(f"There are {shares}: {kind} on average.", abs(gaps[worst]) - noise, kind, values)


def _calibration(sentence: str, excess: float, kind: str, values: dict[str, float]) -> Finding:
    """`excess` is the miscalibration minus the amount that chance explains."""
    if excess <= _SLIGHTLY:
        return Finding("calibration", "ok", sentence, values=values)
    more, less = "raise kl_weight or num_context, or stop training earlier", "lower kl_weight, or train longer"
    advice = f"{(more if kind == 'overconfident' else less).capitalize()}; for real targets, check the noise."
    return Finding("calibration", "fault" if excess > _MISCALIBRATED else "warning", sentence, advice, values)
