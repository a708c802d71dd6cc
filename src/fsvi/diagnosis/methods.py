"""Trained methods: has it learned, is its posterior healthy, does its uncertainty grow away from the data?"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from scipy import stats
from torch import Tensor

from fsvi.diagnosis.findings import Diagnosis, Finding, Level
from fsvi.diagnosis.statistics import ALPHA, LEVELS, HeldOut, check_calibration
from fsvi.errors import InvalidInputError
from fsvi.functions.contexts.general import context_points
from fsvi.functions.divergences import kl_weight_value
from fsvi.likelihoods import BernoulliPredictive
from fsvi.methods import MAP, Method
from fsvi.metrics.checks import check_numbers, check_predictions
from fsvi.posteriors.mean_field import MeanField

_MOST_DATA, _MOST_POINTS, _DRAWS = 1000, 128, 20
_MUCH = 0.2
"""nats: untrained networks are better than the best constant by less"""
_PUSHES = (2.0, 3.0)
"""factors on the distance from the mean of the data"""
_HEAVY = 30.0
"""multiples of the KL's weight in the evidence lower bound"""
_COLLAPSED, _BLOWN_UP = 1e-4, 10.0
"""multiples of the weights"""
_REACH, _FEW_LEAVING, _LEAST_GROWTH, _LOW_RANK = 0.95, 0.3, 1.05, 0.3
_GROUPS, _TOO_NOISY, _NOISY, _NEGLIGIBLE = 5, 0.5, 0.25, 0.05
_IMAGE_DIMENSIONS = 3


def check_method(method: Method, x: Tensor, y: Tensor, num_samples: int) -> Diagnosis:
    """All checks that apply, on a part of the data. If nothing was learned, predictions are not checked further."""
    chosen = _spread(len(x), _MOST_DATA)
    x, y = x[chosen], y[chosen]
    few = x[_spread(len(x), _MOST_POINTS)]
    members = list(method.learners())
    points = _context_points(members[0], x)
    seen = _measure(method.predict(x, _DRAWS), y)
    learning = _check_learning(method, members[0], seen)
    found = [learning, _check_variance(members)]
    if learning.level == "ok":
        near = few if points is None else torch.cat([few, points])
        found += [_check_distance(method, few, points), _check_samples(method, near, num_samples)]
        found.append(check_calibration(seen))
    return Diagnosis(tuple(finding for finding in found if finding is not None), seen.metrics)


def _measure(p: Any, y: Tensor) -> HeldOut:
    """Predictions next to targets. Rows with missing targets are left out; several labels of a row count as rows."""
    if p.is_numeric:
        p, y = check_numbers(p, y)
        complete = ~y.isnan().any(1)
        p, targets = p[complete], y[complete].numpy()
        return HeldOut.of_numbers(p, targets, targets, [p.interval(level) for level in LEVELS])
    if isinstance(p, BernoulliPredictive) and y.dim() == 2 and y.shape[1] > 1:
        return HeldOut.joined([_measure(p.column(label), y[:, label]) for label in range(y.shape[1])])
    probabilities, labels, _ = check_predictions(p, y)
    return HeldOut.of_classes(probabilities.numpy(), labels.numpy(), labels.numpy())


def _check_learning(method: Method, member: Any, seen: HeldOut) -> Finding:
    """Compare the log-likelihood with that of guessing."""
    gain = seen.gain
    sentence = f"Over guessing, the log-likelihood gains {gain}"
    if gain.p <= ALPHA if method.num_data is not None else gain.gain > _MUCH:
        return Finding("learning", "ok", f"{sentence}. {seen.score}", numbers=gain._asdict())
    advice = "Train it with fsvi.fit, for more epochs or with another lr."
    num_data = method.num_data or len(seen.loss)
    weight = kl_weight_value(member.kl_weight, num_data) * num_data if hasattr(member, "kl_weight") else 1.0
    if weight > _HEAVY:
        advice = f"Lower kl_weight: the KL weighs {weight:.3g} times as much as in the evidence lower bound."
    sentence = f"{sentence}: the model is untrained, or training failed. {seen.score}"
    return Finding("learning", "no", sentence, advice, gain._asdict())


# The posterior --------------------------------------------------------------------------------------------------------


def _check_variance(members: list[Any]) -> Finding | None:
    """Compare the median standard deviation of every stochastic tensor with the weights of its layer."""
    ratios = {name: ratio for member in members for name, ratio in _spreads(member).items()}
    if not ratios:
        return None
    low, high = (pick(ratios, key=lambda name: ratios[name]) for pick in (min, max))
    numbers = {"smallest": ratios[low], "largest": ratios[high]}
    sentence = f"Standard deviations are {ratios[low]:.2g} ({low}) to {ratios[high]:.2g} ({high}) of the weights"
    if ratios[high] > _BLOWN_UP:
        advice = "Lower the init or the lr_scale of stds=, or lr."
        return Finding("variance", "no", f"{sentence}: they have blown up.", advice, numbers)
    if ratios[low] >= _COLLAPSED:
        return Finding("variance", "ok", f"{sentence}.", numbers=numbers)
    advice = "Raise the init of stds=, let log_std learn (an lr_scale above 0), or raise kl_weight."
    level: Level = "no" if ratios[high] < _COLLAPSED else "care"
    return Finding("variance", level, f"{sentence}: they have collapsed.", advice, numbers)


def _spreads(method: Any) -> dict[str, float]:
    q = getattr(method, "posterior", None)
    if not isinstance(q, MeanField):
        return {}
    means = q.means()
    return {name: float(std.median()) / _scale(means, name) for name, std in q.stds().items()}


def _scale(means: dict[str, Tensor], name: str) -> float:
    """The root mean square of the layer's weights, but at least that of PyTorch's initialization."""
    layer = name.rpartition(".")[0]
    weight = max((means[other] for other in means if other.rpartition(".")[0] == layer), key=Tensor.numel)
    return max(float(weight.detach().double().square().mean().sqrt()), (3 * weight[0].numel()) ** -0.5)


# Away from the data ---------------------------------------------------------------------------------------------------


def _check_distance(method: Method, few: Tensor, points: Tensor | None) -> Finding | None:
    """Correlate uncertainty with the distance to the nearest datum, at data, context points and beyond."""
    if not few.is_floating_point() or len(few) < 3:
        return None
    center = few.mean(0, keepdim=True)
    pushed = torch.cat([center + factor * (few - center) for factor in _PUSHES])
    away = pushed if points is None else torch.cat([points, pushed])
    near, far = (method.predict(x, _DRAWS).score.double().cpu() for x in (few, away))
    own = _distances(few, few, own=True).cpu()
    rank = _rank_correlation(torch.cat([own, _distances(away, few).cpu()]), torch.cat([near, far]))
    numbers = {"near": float(near.mean()), "far": float(far.mean()), "rank": rank}
    sentence = (
        f"Uncertainty is {numbers['near']:.3g} at the data and {numbers['far']:.3g} away from them; its rank "
        f"correlation with the distance is {rank:.2f}."
    )
    if numbers["far"] >= _LEAST_GROWTH * max(numbers["near"], 1e-12) and rank >= _LOW_RANK:
        return Finding("distance", "ok", sentence, numbers=numbers)
    advice = "Choose a context= that covers such inputs, raise num_context or kl_weight, or train longer."
    if isinstance(method, MAP):
        advice = "A single network has no uncertainty about its function: use FSVI, an Ensemble, or another method."
    elif points is None:
        advice = "Nothing constrains the function away from the data: use FSVI with a context= that covers such inputs."
    elif (share := float((_distances(points, few).cpu() > own.quantile(_REACH)).double().mean())) < _FEW_LEAVING:
        is_image = few.ndim > _IMAGE_DIMENSIONS
        other = "other images with contexts.Dataset" if is_image else "contexts.Uniform(widen=0.5)"
        advice = f"Only {share:.0%} of context points leave the data: choose a context= of other inputs, {other}."
    is_useless = numbers["far"] < _LEAST_GROWTH * max(numbers["near"], 1e-12) or rank < 0
    return Finding("distance", "no" if is_useless else "care", sentence, advice, numbers)


def _distances(points: Tensor, data: Tensor, own: bool = False) -> Tensor:
    """The distance from each point to the nearest datum; with `own` the points are the data and skip themselves."""
    table = torch.cdist(points.double().flatten(1), data.double().flatten(1))
    return table.kthvalue(2 if own else 1, dim=1).values


def _rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's; 0 if one of them is constant."""
    is_constant = bool((a == a[0]).all() or (b == b[0]).all())
    return 0.0 if is_constant else float(stats.spearmanr(a, b).statistic)


def _context_points(member: Any, x: Tensor) -> Tensor | None:
    try:
        return context_points(member.network, copy.copy(getattr(member, "context", None)), _MOST_POINTS, x)
    except InvalidInputError:  # no context, or one whose data were not saved
        return None


def _spread(num: int, most: int) -> Tensor:
    """Places spread evenly over all data."""
    return torch.linspace(0, num - 1, min(num, most)).round().long()


# Predictions ----------------------------------------------------------------------------------------------------------


def _check_samples(method: Method, x: Tensor, num_samples: int) -> Finding | None:
    """Compare the Monte-Carlo error of the uncertainty, from disjoint sets of draws, with its spread over inputs."""
    p = method.predict(x, _GROUPS * num_samples)
    if len(p.samples) != _GROUPS * num_samples:
        return None  # the method decides the number of draws
    whole = p.score
    parts = torch.stack([p.draws(slice(first, None, _GROUPS)).score for first in range(_GROUPS)])
    error = float((parts - whole).square().mean().sqrt())
    spread = max(float(whole.std()), 1e-12)
    sentence = (
        f"With num_samples={num_samples} the uncertainty of a prediction has a Monte-Carlo error of {error:.2g}, "
        f"{error / spread:.2f} of its spread over inputs ({spread:.2g})."
    )
    numbers = {"error": error, "spread": spread}
    if error <= _NEGLIGIBLE * float(whole.mean()) or error <= _NOISY * spread:
        return Finding("samples", "ok", sentence, numbers=numbers)
    needed = math.ceil(num_samples * (error / (_NOISY * spread)) ** 2)
    level: Level = "no" if error > _TOO_NOISY * spread or num_samples == 1 else "care"
    return Finding("samples", level, sentence, f"Predict with num_samples={max(needed, 10)} or more.", numbers)
