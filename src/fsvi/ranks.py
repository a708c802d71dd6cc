"""Several processes: sums over all of them."""

from __future__ import annotations

from collections.abc import Iterable

import torch.distributed
from torch import Tensor


def num_ranks() -> int:
    """The number of processes that train together; 1 without `torch.distributed`."""
    is_ready = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if is_ready else 1


def all_sum(tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by its sum over all processes."""
    if num_ranks() > 1:
        for tensor in tensors:
            torch.distributed.all_reduce(tensor)
