"""Trained methods: has it learned, is its posterior healthy, does its uncertainty grow away from the data?"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

import torch
from scipy import stats
from torch import Tensor

from fsvi.diagnosis.findings import Finding, Level
from fsvi.diagnosis.statistics import (
    ALPHA,
    Paired,
    Promise,
    check_calibration,
    class_promises,
    interval_promises,
)
from fsvi.errors import InvalidInputError
from fsvi.functions.contexts import Context, Dataset
from fsvi.likelihoods import Predictive
from fsvi.methods import MAP, Method
from fsvi.methods.common import kl_weight_value
from fsvi.networks.calls import evaluating
from fsvi.networks.parameters import batch_norms
from fsvi.posteriors.mean_field import MeanField
from fsvi.training import History
from fsvi.validation import check_inputs

_MOST_DATA, _MOST_POINTS, _DRAWS = 1000, 128, 20
_MUCH = 0.2
"""nats: untrained networks are better than the best constant by less"""
_PUSHES = (2.0, 3.0)
"""factors on the distance from the mean of the data"""
_HEAVY, _DOMINANT = 30.0, 10.0
"""multiples of the weight in the evidence lower bound, and of the negative log-likelihood (at least one nat)"""
_COLLAPSED, _BLOWN_UP = 1e-4, 10.0
"""multiples of the weights"""
_REACH, _LEAST_LEAVING, _FEW_LEAVING = 0.95, 0.15, 0.3
_LEAST_GROWTH, _LOW_RANK = 1.05, 0.3
_GROUPS, _TOO_NOISY, _NOISY, _NEGLIGIBLE = 5, 0.5, 0.25, 0.05
_IMAGE_DIMENSIONS = 3


@dataclass(frozen=True)
class Evidence:
    """A method, data to check it on, and points of its context (None if it has none)."""

    method: Method
    x: Tensor
    y: Tensor
    context: Tensor | None
    history: History | None
    num_samples: int

    @classmethod
    def gather(cls, method: Method, data: Any, context: Any, history: History | None, num_samples: int) -> Evidence:
        """Validate the arguments. Of large data, keep a subset spread evenly over all of it."""
        x, y = method.check_batch(data[0], data[1])
        chosen = _spread(len(x), _MOST_DATA)
        x, y = x[chosen], y[chosen]
        return cls(method, x, y, _context_points(method, context, x), history, num_samples)

    @property
    def members(self) -> list[Any]:
        """The members of an ensemble, or the method itself."""
        return list(getattr(self.method, "members", [self.method]))

    @cached_property
    def few(self) -> Tensor:
        """A subset of the inputs, for computations with many draws or all pairs of points."""
        return self.x[_spread(len(self.x), _MOST_POINTS)]

    @cached_property
    def pushed(self) -> Tensor:
        """The same inputs, moved away from their mean."""
        center = self.few.mean(0, keepdim=True)
        return torch.cat([center + factor * (self.few - center) for factor in _PUSHES])

    @cached_property
    def prediction(self) -> Predictive:
        """The prediction at the data."""
        return self.method.predict(self.x, _DRAWS)

    @cached_property
    def gain(self) -> Paired | None:
        """The log-likelihood against that of the best constant prediction; None if no such constant is known."""
        constant = self.prediction.constant_nll(self.y)
        return None if constant is None else Paired.test((self.prediction.log_prob(self.y) + constant).double().numpy())

    @property
    def has_learned_much(self) -> bool:
        """Whether predictions beat the best constant by a wide margin; True if no such constant is known."""
        return self.gain is None or self.gain.mean > _MUCH


def check_method(seen: Evidence) -> list[Finding]:
    """All checks that apply. If nothing was learned, predictions are not checked further."""
    balance = check_balance(seen)
    structure = [balance, check_variance(seen), check_context(seen), check_batch_norm(seen)]
    learning = None if balance is not None and balance.level == "no" else check_learning(seen)
    found = [learning, *structure]
    if not any(finding is not None and finding.level == "no" for finding in (balance, learning)):
        found += [check_distance(seen), check_samples(seen), check_promises(seen)]
    return [finding for finding in found if finding is not None]


def check_learning(seen: Evidence) -> Finding | None:
    """Compare the log-likelihood with that of the best constant prediction."""
    gain = seen.gain
    if gain is None:
        return None
    has_learned = gain.p <= ALPHA if seen.method.num_data is not None else seen.has_learned_much
    words = f"{gain.mean:+.3f} nats per example (95% interval {gain.low:+.3f} to {gain.high:+.3f})"
    numbers = {"gain": gain.mean, "low": gain.low, "high": gain.high, "p": gain.p}
    if has_learned:
        return Finding("learning", "ok", f"Over the best constant prediction it gains {words}.", numbers=numbers)
    sentence = f"Over the best constant prediction it gains {words}: the model is untrained, or training failed."
    return Finding("learning", "no", sentence, "Train it with fsvi.fit, for more epochs or with another lr.", numbers)


def check_balance(seen: Evidence) -> Finding | None:
    """Compare the weighted KL with the negative log-likelihood, over training or now, and check its weight."""
    member = seen.members[0]
    if not hasattr(member, "kl_weight"):
        return None
    terms = _terms(seen)
    if terms is None:
        return None
    nll, kl = terms
    num_data = seen.method.num_data or len(seen.x)
    weight = kl_weight_value(member.kl_weight, num_data) * num_data
    when = "now" if seen.history is None else "over training (median)"
    sentence = (
        f"The KL term is {kl:.3g} and the negative log-likelihood {nll:.3g} {when}; the KL weighs {weight:.3g} times "
        "as much as in the evidence lower bound."
    )
    numbers = {"kl": kl, "nll": nll, "weight": weight}
    if weight <= _HEAVY and kl <= _DOMINANT * max(abs(nll), 1.0):
        return Finding("kl_balance", "ok", sentence, numbers=numbers)
    context = ", or num_context" if hasattr(member, "num_context") else ""
    advice = f"Lower kl_weight (its default is the evidence lower bound's){context}."
    return Finding("kl_balance", "care" if seen.has_learned_much else "no", sentence, advice, numbers)


def _terms(seen: Evidence) -> tuple[float, float] | None:
    """`nll` and `kl`: medians over epochs, or one evaluation on the data."""
    if seen.history is not None:
        terms = seen.history.terms
        return (median(terms["nll"]), median(terms["kl"])) if terms.keys() >= {"nll", "kl"} else None
    member = seen.members[0]
    try:
        with torch.no_grad(), evaluating(member.net):
            found = member(seen.x, seen.y)
    except InvalidInputError:
        return None  # the data of its context were not saved
    return float(found["nll"]), float(found["kl"])


# The posterior --------------------------------------------------------------------------------------------------------


def check_variance(seen: Evidence) -> Finding | None:
    """Compare the median standard deviation of every stochastic tensor with the weights of its layer."""
    ratios = {name: ratio for member in seen.members for name, ratio in _spreads(member).items()}
    if not ratios:
        return None
    low, high = (pick(ratios, key=lambda name: ratios[name]) for pick in (min, max))
    numbers = {"smallest": ratios[low], "largest": ratios[high]}
    blown_up = [name for name, ratio in ratios.items() if ratio > _BLOWN_UP]
    collapsed = [name for name, ratio in ratios.items() if ratio < _COLLAPSED]
    if not blown_up and not collapsed:
        sentence = f"Standard deviations are {ratios[low]:.2g} ({low}) to {ratios[high]:.2g} ({high}) of the weights."
        return Finding("variance", "ok", sentence, numbers=numbers)
    some, what = (blown_up, "blown up") if blown_up else (collapsed, "collapsed")
    sentence = (
        f"The standard deviations of {len(some)} of {len(ratios)} stochastic tensors have {what}: {some[0]} is "
        f"{ratios[some[0]]:.2g} times the weights."
    )
    advice = "Raise the init of stds=, let log_std learn (an lr_scale above 0), or raise kl_weight."
    if blown_up:
        advice = "Lower the init or the lr_scale of stds=, or lr."
    head = {name for member in seen.members for name in member.network.head_names}
    is_serious = bool(blown_up) or len(collapsed) == len(ratios) or any(name in head for name in collapsed)
    return Finding("variance", "no" if is_serious else "care", sentence, advice, numbers)


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


def check_batch_norm(seen: Evidence) -> Finding | None:
    """Check that BatchNorm layers predict with learned statistics; imported weights may have no count of batches."""
    layers = [layer for member in seen.members for layer in batch_norms(member.net)]
    if not layers:
        return None
    without = sum(layer.running_mean is None for layer in layers)
    initial = sum(_is_initial(layer.running_mean, layer.running_var) for layer in layers)
    if without:
        sentence = f"{without} of {len(layers)} BatchNorm layers keep no statistics: predictions depend on the batch."
        return Finding("batch_norm", "no", sentence, "Set track_running_stats=True, or use GroupNorm.")
    if initial:
        sentence = f"{initial} of {len(layers)} BatchNorm layers predict with the statistics that they were made with."
        return Finding("batch_norm", "no", sentence, "Train the method with fsvi.fit before it predicts.")
    return Finding("batch_norm", "ok", f"{len(layers)} BatchNorm layers predict with the statistics of training.")


def _is_initial(mean: Tensor | None, variance: Tensor | None) -> bool:
    return mean is not None and variance is not None and not bool(mean.any()) and bool((variance == 1).all())


# Away from the data ---------------------------------------------------------------------------------------------------


def check_context(seen: Evidence) -> Finding | None:
    """Count the context points that are further from the data than the data are from each other."""
    if seen.context is None or len(seen.few) < 3 or not seen.x.is_floating_point():
        return None
    reach = float(distances(seen.few, seen.few, own=True).quantile(_REACH))
    share = float((distances(seen.context, seen.few) > reach).double().mean())
    sentence = (
        f"{share:.0%} of {len(seen.context)} context points are further from the data than {_REACH:.0%} of the "
        f"data are from each other ({reach:.3g})."
    )
    level: Level = "no" if share < _LEAST_LEAVING else "care" if share < _FEW_LEAVING else "ok"
    is_image = seen.x.ndim > _IMAGE_DIMENSIONS
    other = "other images with contexts.Dataset, such as another dataset" if is_image else "contexts.Uniform(widen=0.5)"
    advice = f"The prior acts only where there are data already: choose a context= that leaves the data, {other}."
    return Finding("context", level, sentence, "" if level == "ok" else advice, {"share": share, "reach": reach})


def check_distance(seen: Evidence) -> Finding | None:
    """Correlate uncertainty with the distance to the nearest datum, at data, context points and beyond."""
    if not seen.x.is_floating_point() or len(seen.few) < 3:
        return None
    away = seen.pushed if seen.context is None else torch.cat([seen.context, seen.pushed])
    near, far = (seen.method.predict(x, _DRAWS).score.double().cpu() for x in (seen.few, away))
    lengths = torch.cat([distances(seen.few, seen.few, own=True), distances(away, seen.few)]).cpu()
    rank = _rank_correlation(lengths, torch.cat([near, far]))
    numbers = {"near": float(near.mean()), "far": float(far.mean()), "rank": rank}
    sentence = (
        f"Uncertainty is {numbers['near']:.3g} at the data and {numbers['far']:.3g} away from them; its rank "
        f"correlation with the distance is {rank:.2f}."
    )
    is_useless = numbers["far"] < _LEAST_GROWTH * max(numbers["near"], 1e-12) or rank < 0
    level: Level = "no" if is_useless else "care" if rank < _LOW_RANK else "ok"
    advice = "Choose a context= that covers such inputs, raise num_context or kl_weight, or train longer."
    if isinstance(seen.method, MAP):
        advice = (
            "A single network has no uncertainty about its function: use FSVI, an Ensemble, or another method that has."
        )
    elif seen.context is None:
        advice = "Nothing constrains the function away from the data: use FSVI with a context= that covers such inputs."
    return Finding("distance", level, sentence, "" if level == "ok" else advice, numbers)


def distances(points: Tensor, data: Tensor, own: bool = False) -> Tensor:
    """The distance from each point to the nearest datum; with `own` the points are the data and skip themselves."""
    table = torch.cdist(points.double().flatten(1), data.double().flatten(1))
    return table.kthvalue(2 if own else 1, dim=1).values


def _rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's; 0 if one of them is constant."""
    is_constant = bool((a == a[0]).all() or (b == b[0]).all())
    return 0.0 if is_constant else float(stats.spearmanr(a, b).statistic)


# Predictions ----------------------------------------------------------------------------------------------------------


def check_samples(seen: Evidence) -> Finding | None:
    """Compare the Monte-Carlo error of the uncertainty, from disjoint sets of draws, with its spread over inputs."""
    x = seen.few if seen.context is None else torch.cat([seen.few, seen.context])
    p = seen.method.predict(x, _GROUPS * seen.num_samples)
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
    level: Level = "ok"
    if error > _NEGLIGIBLE * float(whole.mean()) and error > _NOISY * spread:
        level = "no" if error > _TOO_NOISY * spread or seen.num_samples == 1 else "care"
    needed = math.ceil(seen.num_samples * (error / (_NOISY * spread)) ** 2)
    advice = "" if level == "ok" else f"Predict with num_samples={max(needed, 10)} or more."
    return Finding("samples", level, sentence, advice, {"error": error, "spread": spread})


def check_promises(seen: Evidence) -> Finding | None:
    """Test confidence against accuracy, or intervals against their coverage; None for other kinds of predictions."""
    promises = _numeric_promises(seen) if seen.prediction.is_numeric else _class_promises(seen)
    return check_calibration(promises) if promises else None


def _numeric_promises(seen: Evidence) -> list[Promise]:
    observed = ~seen.y.isnan().any(1)
    p, y = seen.prediction[observed], seen.y[observed]
    kept = {level: (p.quantile((1 - level) / 2) <= y) & (y <= p.quantile((1 + level) / 2)) for level in (0.5, 0.95)}
    return interval_promises({level: held.cpu().numpy() for level, held in kept.items()}) if len(y) else []


def _class_promises(seen: Evidence) -> list[Promise]:
    try:
        probabilities = seen.prediction.class_probabilities()
    except InvalidInputError:
        return []
    y = seen.y.flatten()
    if len(y) != len(probabilities):
        return []
    hard = (y == y.round()) & (y >= 0) & (y < probabilities.shape[1])
    best = probabilities[hard].max(1)
    return (
        class_promises(best.values.cpu().numpy(), (best.indices == y[hard]).cpu().numpy()) if bool(hard.any()) else []
    )


# Evidence -------------------------------------------------------------------------------------------------------------


def _context_points(method: Method, context: Any, x: Tensor) -> Tensor | None:
    """Points of the given context, else of the method's own; None if it has none or if its data were not saved."""
    if context is not None:
        is_context = isinstance(context, Context)
        return _sample(method, context if is_context else Dataset(check_inputs(context, method.dtype)), x)
    own = getattr(getattr(method, "members", [method])[0], "context", None)
    try:
        return None if own is None else _sample(method, own, x)
    except InvalidInputError:
        return None


def _sample(method: Method, context: Context, x: Tensor) -> Tensor:
    points = copy.copy(context).sample(_MOST_POINTS, x).to(x)
    if points.shape[1:] != x.shape[1:]:
        shapes = f"{tuple(points.shape[1:])}, but inputs have shape {tuple(x.shape[1:])}"
        raise InvalidInputError(f"context points have shape {shapes}: give a context of the inputs' shape.")
    return method.network.arranged(points)


def _spread(num: int, most: int) -> Tensor:
    return torch.linspace(0, num - 1, min(num, most)).round().long()
