"""The default network's training: several small networks at once, each with held-out rows of its own.

Member j does not see the rows of fold j, and keeps its parameters of the step at which these rows were most likely. So
every row is held out by at most one member and trained on by all others: the ensemble uses all rows, and the held-out
predictions of all rows together say how large the noise is and how sure classes are.
"""

from __future__ import annotations

import math

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
"""Learning rates of all but the weights, as multiples of theirs; only weights decay."""
_SHARED = ("frequency", "phase", "mixing", "last_bias")
"""Parameters that all members have in common."""
_LOG_VARIANCES = (-10.0, 4.0)
_BALANCE = 0.5
"""β of Seitzer et al. (2022): a row's likelihood counts by its variance to this power, so that rows with much noise are
fitted too."""
_POWERS = torch.arange(0, 5) / 4
_TEMPERATURES = torch.linspace(-1.5, 1.0, 51).exp()
_DOUBT = 1.0
"""How many made-up rows, with all classes equally likely, take part when the temperature is chosen."""


def train_members(
    x: Tensor,
    y: Tensor,
    weights: Tensor,
    num_outputs: int,
    epochs: int | None,
    batch_size: int | None,
    lr: float | None,
) -> tuple[nn.Sequential, History]:
    """Features of all members, trained, and a linear layer that averages their outputs.

    Targets `y` are labels (n,), for logits, or numbers (n, targets), for all the means and then all the log variances.
    """
    num = len(x)
    usual = max(16, min(_BATCH_SIZE, num // 4))
    size = min(num, usual if batch_size is None else check_count("batch_size", batch_size))
    default = min(_STEPS + num // _ROWS_PER_STEP, _MOST_STEPS)
    steps = default if epochs is None else check_count("epochs", epochs) * math.ceil(num / size)
    features = TabularFeatures.for_rows(x).to(x)
    members = Members(features, num_outputs, is_classes=not y.is_floating_point()).to(x)
    held_out = deal_out(weights, features.members)
    counts = weights.repeat(features.members, 1)
    if held_out is not None:
        counts = counts.scatter_add(1, held_out[0], -held_out[1]).clamp_min(0)  # nobody trains on rows of its own
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
        chosen = order[start : start + size].to(x.device)
        start += size
        losses = members.losses(members(x[chosen]), y[chosen], balance=_BALANCE) * counts[:, chosen]
        loss = losses.sum() / counts[:, chosen].sum(1).mean().clamp_min(1e-12)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if (step + 1) % every == 0 or step == steps - 1:
            history.loss.append(float(loss.detach()) / features.members)
            if held_out is not None:
                history.validation.append(best.look(x, y, *held_out))
    features.dropout = 0.0
    members.eval()
    if held_out is not None:
        members.load_state_dict(best.values, strict=False)
        history.best_epoch = 1 + max(range(len(history.validation)), key=history.validation.__getitem__)
        members.calibrate(x, y, *held_out)
    return members.joined(), history


def deal_out(weights: Tensor, members: int) -> tuple[Tensor, Tensor] | None:
    """Rows that each member does not train on, and how often they count, (members, n) each; None of very few rows.

    Each row belongs to one member. A row that counts several times is dealt out in as many parts: otherwise, a table
    with few different rows would be predicted as if each of them were new. Gaps are filled with rows of no weight.
    """
    copies = weights.round().clamp(1, members).long()
    rows = torch.arange(len(weights), device=weights.device).repeat_interleave(copies)
    num = len(rows)
    if num < _LEAST_HELD_OUT:
        return None
    places = torch.arange(math.ceil(num / members) * members)
    dealt = torch.randperm(num).argsort()[places % num].to(rows.device)
    counts = (weights / copies)[rows[dealt]] * (places < num).to(weights)
    return rows[dealt].view(-1, members).T, counts.view(-1, members).T


class Members(nn.Module):
    """Features of all members, and a last layer for each, with logits or with means and log variances."""

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
        """The negative log-likelihood up to a constant, (members, n), of targets of n rows or each member's own."""
        if self.is_classes:
            return F.cross_entropy(f.transpose(1, 2), y.expand(f.shape[:2]), reduction="none")
        mean, log_variance = f.chunk(2, -1)
        log_variance = log_variance.clamp(*_LOG_VARIANCES)
        losses = 0.5 * ((y - mean).square() * (-log_variance).exp() + log_variance)
        return (losses * (balance * log_variance.detach()).exp()).sum(-1)

    @torch.no_grad()
    def calibrate(self, x: Tensor, y: Tensor, rows: Tensor, counts: Tensor) -> None:
        """Fold into the last layer what rows held out say: a temperature, or how the noise depends on the row."""
        f, y, weights = self(x, rows)[counts > 0], y[rows][counts > 0], counts[counts > 0]
        if self.is_classes:
            losses = [
                (F.cross_entropy(f * t, y, reduction="none") * weights).sum() - _DOUBT * (f * t).log_softmax(-1).mean()
                for t in _TEMPERATURES
            ]
            self.last_weight.mul_(_TEMPERATURES[int(torch.stack(losses).argmin())])
            return
        mean, log_variance = f.chunk(2, -1)
        squares, log_variance = (y - mean).square(), log_variance.clamp(*_LOG_VARIANCES)
        for target in range(y.shape[1]):
            power, offset = noise_of_rows(squares[:, target], log_variance[:, target], weights)
            output = y.shape[1] + target
            self.last_weight[..., output] *= power
            self.last_bias[output] = self.last_bias[output] * power + offset

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

    def __init__(self, members: Members) -> None:
        self.members = members
        self.values = {name: p.detach().clone() for name, p in members.named_parameters()}
        self.least = members.last_weight.new_full((members.features.members,), math.inf)

    @torch.no_grad()
    def look(self, x: Tensor, y: Tensor, rows: Tensor, counts: Tensor) -> float:
        """Keep what is better than before; the mean held-out log-likelihood, up to a constant."""
        members = self.members.eval()
        most = _MOST_EVALUATED // len(rows)
        rows, counts = rows[:, :most], counts[:, :most]
        losses = members.losses(members(x, rows), y[rows]) * counts
        members.train()
        now = losses.sum(1) / counts.sum(1).clamp_min(1e-12)
        is_better = now < self.least
        self.least = torch.where(is_better, now, self.least)
        for name, p in members.named_parameters():
            if name.rpartition(".")[2] in _SHARED:
                is_kept = is_better.float().mean() >= 0.5
                self.values[name] = torch.where(is_kept, p, self.values[name])
            else:
                self.values[name][is_better] = p[is_better]
        return -float(now.mean())


def _optimizer(members: Members, lr: float) -> torch.optim.Optimizer:
    by_rate: dict[float, list[nn.Parameter]] = {}
    for name, p in members.named_parameters():
        by_rate.setdefault(next((rate for kind, rate in _RATES.items() if kind in name), 1.0), []).append(p)
    groups = [
        {"params": parameters, "lr": lr * rate, "weight_decay": _DECAY if rate == 1.0 else 0.0}
        for rate, parameters in by_rate.items()
    ]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)


def noise_of_rows(squares: Tensor, log_variance: Tensor, weights: Tensor) -> tuple[float, float]:
    """b and a for which variances exp(a + b · log_variance) make squared errors most likely; b = 0 is one noise."""
    share = weights / weights.sum()
    found = []
    for power in _POWERS.tolist():
        offset = ((squares * (-power * log_variance).exp() * share).sum() + 1e-9).log()
        found.append((float(offset + power * (log_variance * share).sum()), power, float(offset)))
    _, power, offset = min(found)
    return power, offset
