"""How far a row may lie from the training rows before it counts as unusual: as near as the likelihood allows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fsvi.likelihoods import Gaussian, Likelihood
from fsvi.methods.base import Method
from fsvi.networks.fading import fade
from fsvi.networks.known_rows import NewRows
from fsvi.networks.modes import evaluating

LIMITS = ((1.0, 5.0), (1.1, 5.0), (1.25, 5.0), (1.25, 10.0), (1.5, 10.0))
"""By what to multiply the limits that 2% of new rows exceed, and the largest range of a column, in standard deviations
from its mean; the first pair is taken that costs little, or the last."""
COST, NATS = 0.02, 0.01
"""What unusual rows may cost: this share of the held-out loss and squared error; for targets, this many nats."""


def find_limits(start: Method, new: NewRows, y: Tensor, held_out: Sequence[Tensor], variance: float) -> Tensor:
    """The limits of `KnownRows` that leave out the most rows and still cost little.

    Each row is judged as if it were new, and gets the mean and variance that the second stage aims at: beyond the
    limits the mean fades and the variance grows to the prior's. The cost is the mean increase of the rows' losses. A
    model that is nearly always right can afford few rows that it is unsure about, and a model of noisy data many.

    Args:
        start: The point estimate.
        new: The rows to judge.
        y: Their targets.
        held_out: Inputs and targets that the point estimate was not trained on, which tell its loss; may be empty.
        variance: The prior variance of an output.
    """
    likelihood = start.likelihood
    limits = new.limits(*LIMITS[0])
    if likelihood.is_numeric and not isinstance(likelihood, Gaussian):
        return limits
    with torch.no_grad(), evaluating(start.network.module):
        outputs = start.network(new.x)
        before = losses(outputs, y, likelihood, variance)
        usual = before
        if len(held_out) and len(held_out[0]) > 1:
            inputs, targets = start.check_batch(*held_out[:2])
            usual = losses(start.network(inputs), targets, likelihood, variance)
        allowed = COST * usual.mean(0)
        if likelihood.is_numeric:
            allowed[0] = NATS  # a density's logarithm has no natural zero
        else:  # small tables hold out few rows, which tell the loss up to its standard error
            allowed += COST * usual.std(0, correction=0) / math.sqrt(len(usual))
        for factor, width in LIMITS:
            limits = new.limits(factor, width)
            cost = losses(outputs, y, likelihood, variance, new.distances(limits)) - before
            if bool((cost.mean(0) <= allowed).all()):
                break
    return limits


def losses(
    outputs: Tensor, y: Tensor, likelihood: Likelihood, variance: float, distances: Tensor | None = None
) -> Tensor:
    """Each row's negative log-likelihood, and of targets also the squared error, (n, 1) or (n, 2).

    A mean over Gaussian differences of logits of variance v is approximated by dividing logits by √(1 + π v/8).

    Args:
        outputs: The point estimate's outputs.
        y: Targets.
        likelihood: The likelihood.
        variance: The prior variance of an output.
        distances: Distances from the training rows, (n, any); None for none.
    """
    fading = outputs.new_ones(1, 1) if distances is None else fade(distances)[1]
    mean, spread = outputs * fading, variance * (1 - fading.square())
    if not isinstance(likelihood, Gaussian):
        logits = mean / (1 + math.pi / 8 * spread).sqrt()
        return torch.nn.functional.cross_entropy(logits, y, reduction="none")[:, None]
    total = likelihood.noise.square() + spread
    squares = (y - mean).square()
    nll = 0.5 * (squares / total + total.log())
    return torch.stack([nll.sum(1), squares.sum(1)], 1)
