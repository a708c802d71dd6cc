"""One step of training."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor
from torch.optim import Optimizer

from fsvi.errors import NonFiniteLossError
from fsvi.methods.base import Method
from fsvi.networks.parameters import batch_norms


def take_step(method: Method, optimizer: Optimizer, x: Tensor, y: Tensor, epoch: int = 1) -> dict[str, float]:
    """One step of the optimiser, or an error and everything as it was, BatchNorm's statistics included."""
    optimizer.zero_grad(set_to_none=True)
    buffers = [buffer for layer in batch_norms(method) for buffer in layer.buffers(recurse=False)]
    before = [buffer.clone() for buffer in buffers]
    terms = {name: float(term.detach()) for name, term in method.backward(x, y).items()}
    wrong = _find_non_finite(terms, optimizer)
    if wrong is not None:
        for buffer, value in zip(buffers, before, strict=True):
            buffer.copy_(value)
        rate = optimizer.param_groups[0]["lr"]
        raise NonFiniteLossError(
            f"{wrong} in epoch {epoch}: lower the learning rate (now {rate:.3g}), or check the data's scale; no step "
            "was made."
        )
    optimizer.step()
    method.after_step()
    return terms


def _find_non_finite(terms: Mapping[str, float], optimizer: Optimizer) -> str | None:
    for name, value in terms.items():
        if not math.isfinite(value):
            return f"the {name} term of the loss became {value}"
    gradients = (p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None)
    if not all(math.isfinite(gradient.sum()) for gradient in gradients):
        return "the gradient of the loss became NaN or infinite"
    return None
