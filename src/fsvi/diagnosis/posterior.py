"""Do the standard deviations of the parameters have a reasonable size, and does BatchNorm have statistics?"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from fsvi.diagnosis.evidence import Evidence
from fsvi.diagnosis.findings import Finding
from fsvi.methods import Method
from fsvi.networks.parameters import batch_norms
from fsvi.posteriors import MeanField

_COLLAPSED, _BLOWN_UP = 1e-4, 10.0
"""multiples of the weights"""
_SHRUNK, _GROWN = 1e-3, 100.0
"""multiples of the initial value"""


@dataclass(frozen=True)
class _Tensor:
    """A stochastic tensor, with its median standard deviation relative to its layer's weights and to its start."""

    name: str
    ratio: float
    growth: float
    in_head: bool

    @property
    def has_collapsed(self) -> bool:
        return self.ratio < _COLLAPSED or (self.growth < _SHRUNK and self.ratio < 100 * _COLLAPSED)

    @property
    def has_blown_up(self) -> bool:
        return self.ratio > _BLOWN_UP or (self.growth > _GROWN and self.ratio > 1)

    def __str__(self) -> str:
        return f"{self.ratio:.2g} times the weights and {self.growth:.2g} times where it started"


def check_variance(seen: Evidence) -> Finding | None:
    """Compare standard deviations with the scale of their weights and with their initial values."""
    tensors = [tensor for member in seen.members for tensor in _tensors(member)]
    if not tensors:
        return None
    low, high = (pick(tensors, key=lambda tensor: tensor.ratio) for pick in (min, max))
    values = {"smallest": low.ratio, "largest": high.ratio}
    blown_up = [tensor for tensor in tensors if tensor.has_blown_up]
    collapsed = [tensor for tensor in tensors if tensor.has_collapsed]
    if blown_up:
        sentence = f"{_named(blown_up, tensors)} blown up: {blown_up[0].name} is {blown_up[0]}."
        return Finding("variance", "fault", sentence, "Lower the init or the lr_scale of stds=, or lr.", values)
    if collapsed:
        sentence = f"{_named(collapsed, tensors)} collapsed: {collapsed[0].name} is {collapsed[0]}."
        advice = "Raise the init of stds=, let log_std learn (an lr_scale above 0), or raise kl_weight."
        serious = len(collapsed) == len(tensors) or any(tensor.in_head for tensor in collapsed)
        return Finding("variance", "fault" if serious else "warning", sentence, advice, values)
    sentence = f"Standard deviations are {low.ratio:.2g} ({low.name}) to {high.ratio:.2g} ({high.name}) of the weights."
    return Finding("variance", "ok", sentence, values=values)


def _named(some: list[_Tensor], tensors: list[_Tensor]) -> str:
    return f"The standard deviations of {len(some)} of {len(tensors)} stochastic tensors have"


def check_batch_norm(seen: Evidence) -> Finding | None:
    """Check that BatchNorm layers predict with learned statistics."""
    layers = [layer for member in seen.members for layer in batch_norms(member.net)]
    if not layers:
        return None
    without = [layer for layer in layers if layer.running_mean is None]
    unseen = [layer for layer in layers if layer.num_batches_tracked is not None and not int(layer.num_batches_tracked)]
    if without:
        sentence = (
            f"{len(without)} of {len(layers)} BatchNorm layers keep no statistics: predictions depend on the batch."
        )
        return Finding("batch_norm", "fault", sentence, "Set track_running_stats=True, or use GroupNorm.")
    if unseen:
        sentence = (
            f"{len(unseen)} of {len(layers)} BatchNorm layers have seen no batch and predict with initial statistics."
        )
        return Finding("batch_norm", "fault", sentence, "Train the method with fsvi.fit before it predicts.")
    sentence = (
        f"{len(layers)} BatchNorm layers learned their statistics from training batches only and predict with them; "
        "their scales and shifts are not random."
    )
    return Finding("batch_norm", "ok", sentence)


def _tensors(method: Method) -> list[_Tensor]:
    q = getattr(method, "posterior", None)
    if not isinstance(q, MeanField):
        return []
    means, stds, logs = q.means(), q.stds(), q.layout.views(q.log_std.detach())
    return [
        _Tensor(
            name,
            ratio=float(stds[name].median()) / _scale(means, name),
            growth=math.exp(float(logs[name].median()) - q.start[name]),
            in_head=name in method.network.head_names,
        )
        for name in stds
    ]


def _scale(means: dict[str, Tensor], name: str) -> float:
    """The root mean square of the layer's weights, but at least that of PyTorch's initialization."""
    layer = name.rpartition(".")[0]
    weight = max((means[other] for other in means if other.rpartition(".")[0] == layer), key=Tensor.numel)
    return max(float(weight.double().square().mean().sqrt()), (3 * weight[0].numel()) ** -0.5)
