"""Classes, of one task or divided among several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch import distributions as D
from torch.nn import functional as F

from fsvi.errors import InvalidInputError
from fsvi.likelihoods.base import Likelihood
from fsvi.likelihoods.predictive import Predictive, as_labels, check_defined, log_mean_exp, precise
from fsvi.validation import as_tensor, check_fraction, check_labels

_NO_LABEL = -100
"""PyTorch's default; labels are checked before, so none has it"""
_ROUNDING = 1e-4
_EXCLUDED = -1e4
"""The logit of a class of another task: its probability is exactly 0, and all logarithms stay finite."""


class Categorical(Likelihood):
    """Integer labels 0..C−1, or a probability of each class; the network's outputs are logits.

    The loss of an example is −Σ_c w_c q_c log p_c, with weights w and q = (1 − ε) q' + ε/C for targets q' and label
    smoothing ε. A weight of 2 counts the examples of a class twice. Weights are not divided by their mean.

    Args:
        class_weight: One weight per class; None weighs all the same.
        label_smoothing: ε, from 0 to below 1.
        ignore_index: The label of examples without a target, which do not count; None if all have one.

    Attributes:
        is_plain: Whether the loss is the cross-entropy of labels, without any option.

    Examples:
        >>> likelihood = fsvi.Categorical()
        >>> logits, labels = torch.zeros(4, 2), torch.tensor([0, 1, 1, 0])
        >>> round(float(likelihood.nll(logits, labels)), 3)  # ln 2
        0.693
    """

    takes_weights = True
    class_weight: Tensor | None

    def __init__(
        self,
        class_weight: Sequence[float] | Tensor | None = None,
        label_smoothing: float = 0.0,
        ignore_index: int | None = None,
    ) -> None:
        super().__init__()
        self.register_buffer("class_weight", None if class_weight is None else _check_weights(class_weight))
        self.label_smoothing = check_fraction("label_smoothing", label_smoothing)
        if ignore_index is not None and (isinstance(ignore_index, bool) or not isinstance(ignore_index, int)):
            raise InvalidInputError(f"ignore_index={ignore_index!r} must be a whole number or None.")
        self.ignore_index = ignore_index
        self.is_plain = class_weight is None and not label_smoothing and ignore_index is None

    def bind(self, num_outputs: int) -> None:
        """Check the number of weights."""
        if self.class_weight is not None and len(self.class_weight) != num_outputs:
            given = len(self.class_weight)
            raise InvalidInputError(f"class_weight has {given} values for a network with {num_outputs} outputs.")

    def check_targets(self, y: Tensor, num_outputs: int) -> Tensor:
        """Labels as int64 (n,), or probabilities (n, C)."""
        if num_outputs == 1:
            raise InvalidInputError(
                "the network has one output, but Categorical needs one per class: use fsvi.Bernoulli() for one logit."
            )
        if y.dim() == 2 and y.shape[1] == num_outputs and y.is_floating_point():
            sums = y.sum(1)
            if not bool((y >= 0).all()) or not torch.allclose(sums, torch.ones_like(sums), atol=_ROUNDING):
                raise InvalidInputError(
                    "targets with a column per class must be probabilities that sum to 1 in each row."
                )
            return y
        if self.ignore_index is None or y.is_floating_point():
            return check_labels(y, num_outputs)
        ignored = y == self.ignore_index
        labels = check_labels(y.masked_fill(ignored, 0), num_outputs)
        return labels.masked_fill(ignored.reshape(labels.shape), self.ignore_index)

    def nll(self, f: Tensor, y: Tensor) -> Tensor:
        """Mean cross-entropy."""
        losses, observed = self._losses(f, y), self.observed(y)
        return losses.mean() if observed is None and self.weights is None else self.average(losses, observed)

    def _losses(self, f: Tensor, y: Tensor) -> Tensor:
        """−Σ_c w_c q_c log p_c of every example; 0 where the target is missing."""
        targets = y.expand(f.shape if y.is_floating_point() else f.shape[:-1])
        losses = F.cross_entropy(
            f.flatten(0, -2),
            targets.flatten(0, f.dim() - 2),
            weight=None if self.class_weight is None else self.class_weight.to(f),
            ignore_index=_NO_LABEL if y.is_floating_point() or self.ignore_index is None else self.ignore_index,
            label_smoothing=self.label_smoothing,
            reduction="none",
        )
        return losses.reshape(f.shape[:-1])

    def observed(self, y: Tensor) -> Tensor | None:
        """Examples whose label is not `ignore_index`."""
        return None if self.ignore_index is None or y.is_floating_point() else y != self.ignore_index

    def num_observed(self, y: Tensor) -> int | Tensor:
        """Labels, or rows of probabilities, that are not `ignore_index`."""
        if y.is_floating_point():
            return y[..., 0].numel()
        return y.numel() if self.ignore_index is None else (y != self.ignore_index).sum()

    def predictive(self, f: Tensor) -> CategoricalPredictive:
        """Class probabilities averaged over draws."""
        return CategoricalPredictive(f, self.ignore_index)

    def fisher_root(self, f: Tensor, y: Tensor | None = None) -> Tensor:
        """√t (diag(√p) − p √pᵀ), a root of t (diag(p) − p pᵀ), with t = Σ_c w_c q_c; t = E w without targets."""
        p = f.softmax(-1)
        root = p.sqrt().diag_embed() - p[:, :, None] * p.sqrt()[:, None, :]
        # with equal probabilities, an example's loss is t log C
        totals = self._losses(torch.zeros_like(f), p if y is None else y) / math.log(f.shape[-1])
        return totals.sqrt()[:, None, None] * root


def _check_weights(weights: Sequence[float] | Tensor) -> Tensor:
    values = as_tensor("class_weight", weights).detach().float()
    if values.dim() != 1 or not bool((values >= 0).all() and values.isfinite().all() and (values > 0).any()):
        raise InvalidInputError(f"class_weight={weights} must be finite numbers of at least 0, not all of them 0.")
    return values.clone()


class MultiHead(Categorical):
    """Integer labels of several tasks, each with outputs of its own: a head of the last layer.

    Only the outputs of the present task compete: the probabilities of all other classes are 0. Labels keep their
    numbers, so that task 1 of `MultiHead([[0, 1], [2, 3]])` has the labels 2 and 3. `fsvi.fit_tasks` sets `task`; to
    predict for an earlier task, set it yourself: `method.likelihood.task = 0`.

    Args:
        heads: The classes of each task, in the order of the tasks. Together they are 0..C−1, each once.
        task: The number of the present task, from 0.

    Examples:
        >>> likelihood = fsvi.MultiHead([[0, 1], [2, 3]])
        >>> likelihood.task = 1
        >>> likelihood.predictive(torch.zeros(1, 1, 4)).mean
        tensor([[0.0000, 0.0000, 0.5000, 0.5000]])
    """

    def __init__(self, heads: Sequence[Sequence[int]], task: int = 0) -> None:
        super().__init__()
        self.heads = _check_heads(heads)
        self.task = task

    @property
    def classes(self) -> list[int]:
        """The classes of the present task."""
        if self.task not in range(len(self.heads)):
            raise InvalidInputError(f"task={self.task!r} must be a whole number from 0 to {len(self.heads) - 1}.")
        return self.heads[self.task]

    def bind(self, num_outputs: int) -> None:
        """Check that there is an output for every class."""
        super().bind(num_outputs)
        num_classes = sum(map(len, self.heads))
        if num_classes != num_outputs:
            raise InvalidInputError(f"the heads have {num_classes} classes, but the network has {num_outputs} outputs.")

    def check_targets(self, y: Tensor, num_outputs: int) -> Tensor:
        """Labels as int64 (n,), all of them of the present task."""
        if y.dim() == 2 and y.is_floating_point() and y.shape[1] > 1:
            raise InvalidInputError(f"targets have shape {tuple(y.shape)}: MultiHead needs a label per example.")
        y = super().check_targets(y, num_outputs)
        unknown = y[~torch.isin(y, torch.tensor(self.classes, device=y.device))]
        if len(unknown):
            classes = ", ".join(map(str, self.classes))
            raise InvalidInputError(f"label {int(unknown[0])} is not a class of task {self.task}, which has {classes}.")
        return y

    def nll(self, f: Tensor, y: Tensor) -> Tensor:
        """Mean cross-entropy among the classes of the present task."""
        return super().nll(self._restricted(f), y)

    def predictive(self, f: Tensor) -> CategoricalPredictive:
        """Class probabilities averaged over draws."""
        return super().predictive(self._restricted(f))

    def fisher_root(self, f: Tensor, y: Tensor | None = None) -> Tensor:
        """As for `Categorical`; outputs of other tasks have no curvature."""
        return super().fisher_root(self._restricted(f), y)

    def _restricted(self, f: Tensor) -> Tensor:
        """The outputs, with those of other tasks excluded."""
        excluded = torch.ones(f.shape[-1], dtype=torch.bool, device=f.device)
        excluded[self.classes] = False
        return f.masked_fill(excluded, _EXCLUDED)


def _check_heads(heads: Sequence[Sequence[int]]) -> list[list[int]]:
    listed = [[int(label) for label in head] for head in heads]
    together = sorted(label for head in listed for label in head)
    if not all(listed) or not together or together != list(range(len(together))):
        raise InvalidInputError(
            f"heads={listed} must list the classes 0, 1, 2, ... of all tasks, each class once, and at least one a task."
        )
    return listed


class CategoricalPredictive(Predictive):
    """Class probabilities; all entropies are in nats.

    Args:
        logits: The draws' outputs, (samples, n, classes).
        ignore_index: The label of inputs without a target, which `log_prob` counts as 0; None if there is none.
    """

    def __init__(self, logits: Tensor, ignore_index: int | None = None) -> None:
        super().__init__(D.Categorical, logits=precise(logits).log_softmax(-1))
        check_defined(self.log_probs.amax(-1))
        self.ignore_index = ignore_index

    @property
    def log_probs(self) -> Tensor:
        """Each draw's log-probabilities, (samples, n, classes)."""
        return self.parameters["logits"]

    @property
    def samples(self) -> Tensor:
        """(samples, n, classes): each draw's class probabilities."""
        return self.log_probs.exp()

    def log_prob(self, y: Any) -> Tensor:
        """log 1/S Σₛ p(y|fₛ(x)) for integer labels, (n,); 0 where the label is `ignore_index`."""
        y, observed = as_labels(y, self.log_probs[0], self.ignore_index)
        chosen = self.log_probs.gather(-1, y.expand(self.log_probs.shape[:-1])[..., None]).squeeze(-1)
        return log_mean_exp(chosen).masked_fill(~observed, 0.0)

    def outcomes(self) -> Tensor:
        """(samples, n, classes)."""
        return self.log_probs

    def tempered(self, temperature: float) -> CategoricalPredictive:
        """A copy whose draws have logits divided by a temperature; everything else stays."""
        return self._with_parameters({"logits": (self.log_probs / temperature).log_softmax(-1)})
