"""Memory and time of training, estimated before it starts."""

from fsvi.cost.allocation import keep_memory
from fsvi.cost.estimate import CostEstimate, estimate_cost

__all__ = ["CostEstimate", "estimate_cost", "keep_memory"]
