"""The optimiser of methods that are trained side by side, each with an update rule of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer


class JointOptimizer(Optimizer):
    """Several optimisers as one, each with its own rule for its own parameters."""

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        self._parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._share()

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Every part makes a step."""
        for part in self._parts:
            part.step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the state of all parts."""
        super().load_state_dict(state_dict)
        self._share()

    def _share(self) -> None:
        """One state and one list of groups for all: parts have no parameter in common."""
        groups = iter(self.param_groups)
        for part in self._parts:
            part.state = self.state
            part.param_groups = [next(groups) for _ in part.param_groups]
