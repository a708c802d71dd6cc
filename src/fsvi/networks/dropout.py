"""Dropout whose masks take less time than PyTorch's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from fsvi.networks.functional import is_transformed

_LEVELS = 2**16
"""How many values 16 random bits have."""


def drop(h: Tensor, rate: float) -> Tensor:
    """Dropout as in training: entries of `h` become 0 with this probability, the others are divided by 1 − rate.

    On a CPU, a mask takes 16 random bits per entry, which makes it several times faster than `F.dropout`. The rate is
    then rounded to a multiple of 2⁻¹⁶. `F.dropout` takes as long as a fifth of a transformer's training step, and its
    masks for a given seed depend on who made the processor.

    Args:
        h: A tensor.
        rate: The probability of dropping an entry.
    """
    dropped = round(rate * _LEVELS)
    if h.device.type != "cpu" or dropped == _LEVELS or is_transformed():
        return nn.functional.dropout(h, rate)
    bits = torch.empty(-(-h.numel() // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    mask = torch.empty_like(h, requires_grad=False)
    # In place, the comparison gives 0 and 1 in the type of the bits, several times faster than a boolean tensor.
    mask.as_strided((h.numel(),), (1,)).copy_(bits[: h.numel()].ge_(dropped - _LEVELS // 2))
    return h * mask.mul_(_LEVELS / (_LEVELS - dropped))


@contextmanager
def fast_dropout(module: nn.Module) -> Iterator[None]:
    """A context in which the dropout layers of `module` that are in training mode call `drop`.

    Other kinds of dropout, such as that of whole channels, stay as they are.
    """
    layers = [layer for layer in module.modules() if type(layer) is nn.Dropout and layer.training and layer.p > 0]
    layers = [layer for layer in layers if "forward" not in vars(layer)]  # somebody else's, or a call inside a call
    for layer in layers:
        layer.forward = partial(drop, rate=layer.p)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward
