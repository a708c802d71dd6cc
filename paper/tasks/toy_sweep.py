"""What the toy tasks share: the sweep of the demo, and the epochs of each profile."""

from __future__ import annotations

from typing import Any

from paper.experiment import Order
from paper.task import Sweep

TOY_SWEEP = Sweep("toy", (("fsvi", None), ("mfvi", None), ("ensemble:map", None)))

_EPOCHS = {"quick": 500, "smoke": 5}


def toy_fit_settings(order: Order, **own: Any) -> dict[str, Any]:
    """A recipe's own settings of `fit`, shortened by the profile and overridden by the order."""
    shortened = {"epochs": _EPOCHS[order.profile]} if order.profile in _EPOCHS else {}
    return {**own, **shortened, **order.fit_settings}
