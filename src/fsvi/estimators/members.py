"""The default network's training: several small networks at once, each with held-out rows of its own.

Member j does not see the rows of fold j, and keeps its parameters of the step at which these rows were most likely. So
every row is held out by at most one member and trained on by all others: the ensemble uses all rows, and the held-out
predictions of all rows together say how large the noise is and how sure classes are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fsvi.networks.tabular import TabularFeatures
from fsvi.training import History
from fsvi.validation import check_count, check_positive

_STEPS, _ROWS_PER_STEP, _MOST_STEPS = 300, 20, 15_000
"""Training takes 300 steps and one more for every twenty rows, up to a limit."""
_EVALUATIONS, _MOST_EVALUATED, _LEAST_HELD_OUT = 24, 20_000, 8
"""How often held-out rows are looked at, how many of them, and with fewer than how many rows none are held out."""
_LR, _BATCH_SIZE, _DROPOUT, _DECAY = 0.06, 128, 0.15, 0.02
_RATES = {"bias": 0.3, "gain": 3.0, "frequency": 0.1, "phase": 0.1, "mixing": 0.3}
"""Learning rates of some parameters, as multiples of that of the weights."""
_LOG_VARIANCES = (-10.0, 4.0)
_BALANCE = 0.5
"""β of Seitzer et al. (2022): a row's likelihood counts by its variance to this power, so that rows with much noise are
fitted too."""
_POWERS = torch.arange(0, 5) / 4
_TEMPERATURES = torch.linspace(-1.5, 1.0, 51).exp()
_DOUBT = 1.0
"""How many made-up rows, with all classes equally likely, take part when the temperature is chosen."""


@dataclass(frozen=True)
class _Folds:
    """Rows that members do not train on: each member's own part of all rows, with zero weights where it has none.

    Attributes:
        rows: The rows of each member, (members, n).
        weights: How many times each of them counts.
    """

    rows: Tensor
    weights: Tensor

    @classmethod
    def draw(cls, weights: Tensor, members: int) -> _Folds | None:
        """Deal rows out to the members; None if there are too few."""
        num = len(weights)
        if num < _LEAST_HELD_OUT:
            return None
        places = torch.arange(math.ceil(num / members) * members)
        rows = torch.randperm(num).argsort()[places % num].view(-1, members).T.to(weights.device)
        is_own = (places < num).view(-1, members).T.to(weights)
        return cls(rows, weights[rows] * is_own)

    def hides(self, num: int) -> Tensor:
        """Which of `num` rows each member must not see, (members, num)."""
        hidden = torch.zeros(len(self.rows), num, dtype=torch.bool, device=self.rows.device)
        return hidden.scatter_(1, self.rows, self.weights > 0)


@dataclass(frozen=True)
class Rows:
    """Training rows.

    Attributes:
        x: Standardized columns.
        y: Labels, (n,), or standardized targets, (n, targets).
        weights: How many times each row counts.
    """

    x: Tensor
    y: Tensor
    weights: Tensor

    @property
    def is_classes(self) -> bool:
        """Whether targets are labels."""
        return not self.y.is_floating_point()


def train_members(
    rows: Rows, num_outputs: int, epochs: int | None, batch_size: int | None, lr: float | None
) -> tuple[nn.Sequential, History]:
    """A trained network: features of all members, and a linear layer that averages their outputs.

    Its outputs are logits, or all the means and then all the log variances. Random numbers come from torch's generator.

    Args:
        rows: The training rows.
        num_outputs: The number of outputs.
        epochs: How often to go through the rows; None for a number that suits them.
        batch_size: Rows per step; None for 128, and fewer in small tables.
        lr: The learning rate; None for 0.06.
    """
    num = len(rows.x)
    usual = max(16, min(_BATCH_SIZE, num // 4))
    size = min(num, usual if batch_size is None else check_count("batch_size", batch_size))
    default = min(_STEPS + num // _ROWS_PER_STEP, _MOST_STEPS)
    steps = default if epochs is None else check_count("epochs", epochs) * math.ceil(num / size)
    features = TabularFeatures.for_rows(rows.x).to(rows.x)
    members = _Members(features, num_outputs, rows.is_classes).to(rows.x)
    held_out = _Folds.draw(rows.weights, features.members)
    is_seen = None if held_out is None else ~held_out.hides(num)
    optimizer = _optimizer(members, _LR if lr is None else check_positive("lr", lr))
    rates = [group["lr"] for group in optimizer.param_groups]
    history, best = History(), _Best(members)
    every = max(10, steps // _EVALUATIONS)
    order, start = torch.randperm(num), 0
    for step in range(steps):
        done = step / steps
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * 0.5 * (1 - math.cos(2 * math.pi * math.log2(1 + 15 * done)))
        features.dropout = _DROPOUT * min(1.0, 2 * (1 - done))
        if start + size > num:
            order, start = torch.randperm(num), 0
        chosen = order[start : start + size].to(rows.x.device)
        start += size
        losses = members.losses(members(rows.x[chosen]), rows.y[chosen], balance=_BALANCE)
        counts = rows.weights[chosen].expand(features.members, -1)
        counts = counts if is_seen is None else counts * is_seen[:, chosen]
        loss = (losses * counts).sum() / counts.sum(1).mean().clamp_min(1e-12)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if (step + 1) % every == 0 or step == steps - 1:
            history.loss.append(float(loss.detach()) / features.members)
            if held_out is not None:
                history.validation.append(best.look(members, rows, held_out))
    features.dropout = 0.0
    members.eval()
    if held_out is not None:
        best.restore(members)
        history.best_epoch = 1 + max(range(len(history.validation)), key=history.validation.__getitem__)
        _calibrate(members, rows, held_out)
    return members.joined(), history


class _Members(nn.Module):
    """Features of all members and a last layer for each."""

    def __init__(self, features: TabularFeatures, num_outputs: int, is_classes: bool) -> None:
        super().__init__()
        self.features, self.is_classes = features, is_classes
        self.last_weight = nn.Parameter(0.1 * torch.randn(features.members, features.hidden[-1], num_outputs))
        self.last_bias = nn.Parameter(torch.zeros(num_outputs), requires_grad=not is_classes)

    def forward(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """Outputs (members, n, outputs) for all rows, or for each member's own `rows`."""
        h = self.features.by_member(x, rows)
        return torch.baddbmm(self.last_bias, h, self.last_weight, alpha=self.features.hidden[-1] ** -0.5)

    def losses(self, f: Tensor, y: Tensor, balance: float = 0.0) -> Tensor:
        """The negative log-likelihood of each row for each member, up to a constant, (members, n).

        Targets are those of n rows, or of each member's own rows.
        """
        if self.is_classes:
            return F.cross_entropy(f.transpose(1, 2), y.expand(f.shape[:2]), reduction="none")
        mean, log_variance = f.chunk(2, -1)
        log_variance = log_variance.clamp(*_LOG_VARIANCES)
        losses = 0.5 * ((y - mean).square() * (-log_variance).exp() + log_variance)
        return (losses * (balance * log_variance.detach()).exp()).sum(-1)

    def joined(self) -> nn.Sequential:
        """One network with the average of all outputs."""
        count, width, outputs = self.last_weight.shape
        last = nn.Linear(count * width, outputs).to(self.last_weight)
        with torch.no_grad():
            last.weight.copy_(self.last_weight.permute(2, 0, 1).flatten(1) / (count * width**0.5))
            last.bias.copy_(self.last_bias)
        return nn.Sequential(self.features, last)


class _Best:
    """Each member's parameters when its own held-out rows were most likely; shared ones as most members liked them."""

    def __init__(self, members: _Members) -> None:
        self.values = {name: p.detach().clone() for name, p in members.named_parameters()}
        self.least = torch.full((members.features.members,), math.inf)

    @torch.no_grad()
    def look(self, members: _Members, rows: Rows, held_out: _Folds) -> float:
        """Keep what is better than before; the mean held-out log-likelihood, up to a constant."""
        members.eval()
        most = _MOST_EVALUATED // members.features.members
        at, counts = held_out.rows[:, :most], held_out.weights[:, :most]
        losses = members.losses(members(rows.x, at), rows.y[at]) * counts
        members.train()
        now = (losses.sum(1) / counts.sum(1).clamp_min(1e-12)).cpu()
        is_better = now < self.least
        self.least = torch.where(is_better, now, self.least)
        for name, p in members.named_parameters():
            if _is_shared(name):
                if is_better.float().mean() >= 0.5:
                    self.values[name].copy_(p)
            else:
                self.values[name][is_better] = p[is_better]
        return -float(now.mean())

    @torch.no_grad()
    def restore(self, members: _Members) -> None:
        """Give the members what was kept."""
        for name, p in members.named_parameters():
            p.copy_(self.values[name])


def _is_shared(name: str) -> bool:
    return name.rpartition(".")[2] in ("frequency", "phase", "mixing", "last_bias")


def _optimizer(members: _Members, lr: float) -> torch.optim.Optimizer:
    kinds: dict[str, list[nn.Parameter]] = {}
    for name, p in members.named_parameters():
        kinds.setdefault(next((kind for kind in _RATES if kind in name), "weight"), []).append(p)
    groups = [
        {"params": parameters, "lr": lr * _RATES.get(kind, 1.0), "weight_decay": 0.0 if kind in _RATES else _DECAY}
        for kind, parameters in kinds.items()
    ]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)


@torch.no_grad()
def _calibrate(members: _Members, rows: Rows, held_out: _Folds) -> None:
    """Fold into the last layer what held-out predictions say: a temperature, or how the noise depends on the row."""
    counted = held_out.weights > 0
    f, at = members(rows.x, held_out.rows)[counted], held_out.rows[counted]
    y, weights = rows.y[at], rows.weights[at]
    if rows.is_classes:
        losses = [
            (F.cross_entropy(f * t, y, reduction="none") * weights).sum() - _DOUBT * (f * t).log_softmax(-1).mean()
            for t in _TEMPERATURES
        ]
        members.last_weight.mul_(_TEMPERATURES[int(torch.stack(losses).argmin())])
        return
    mean, log_variance = f.chunk(2, -1)
    squares, log_variance = (y - mean).square(), log_variance.clamp(*_LOG_VARIANCES)
    for target in range(y.shape[1]):
        power, offset = _noise(squares[:, target], log_variance[:, target], weights)
        output = y.shape[1] + target
        members.last_weight[..., output] *= power
        members.last_bias[output] = members.last_bias[output] * power + offset


def _noise(squares: Tensor, log_variance: Tensor, weights: Tensor) -> tuple[float, float]:
    """b and a for which the variances exp(a + b · log_variance) make squared errors most likely; b = 0 is one noise."""
    share = weights / weights.sum()
    found = []
    for power in _POWERS.tolist():
        offset = ((squares * (-power * log_variance).exp() * share).sum() + 1e-9).log()
        found.append((float(offset + power * (log_variance * share).sum()), power, float(offset)))
    _, power, offset = min(found)
    return power, offset
