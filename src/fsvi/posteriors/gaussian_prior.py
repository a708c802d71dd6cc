"""Gaussian priors over a network's parameters: which have one, its density, and the divergence from it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from fsvi.errors import InvalidInputError
from fsvi.networks.parameters import deterministic_names

_PART = 2**18
"""How many squares are summed in one go; the rounding errors of longer sums would add up."""


def prior_names(net: nn.Module) -> list[str]:
    """The parameters that have a prior: all trainable ones except the scale and shift of BatchNorm and InstanceNorm."""
    skip = deterministic_names(net)
    names = [name for name, p in net.named_parameters() if p.requires_grad and name not in skip]
    if not names:
        raise InvalidInputError(
            "every parameter of the network is frozen: leave requires_grad=True on what is to learn."
        )
    return names


def negative_log_normal(tensors: Iterable[Tensor], variance: float) -> Tensor:
    """−log N(·; 0, variance·I) over the entries of all tensors, up to a constant."""
    return 0.5 / variance * _squared_norm(list(tensors))


def normal_kl(means: Iterable[Tensor], log_std: Tensor, prior_variance: float) -> Tensor:
    """KL(N(mean, diag(exp(log_std)²)) ‖ N(0, prior_variance·I)), a scalar.

    ½ Σᵢ [(stdᵢ² + meanᵢ²) / prior_variance − 1 + log prior_variance − 2 log_stdᵢ]
    """
    squares = (2 * log_std).exp().sum() + _squared_norm(list(means))
    return 0.5 * (squares / prior_variance + log_std.numel() * (math.log(prior_variance) - 1)) - log_std.sum()


def _squared_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Σ t² over the entries of all tensors; convolution weights in channels-last order are read without a copy."""
    rows = [(t.permute(0, 2, 3, 1) if t.dim() == 4 else t).flatten() for t in tensors]
    return torch.stack([torch.dot(part, part) for row in rows for part in row.split(_PART)]).sum()
