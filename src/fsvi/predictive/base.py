"""The interface of predictions: what every method returns, and what metrics, diagnosis, referral and files read."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import torch
from torch import Tensor
from torch.distributions import Distribution

from fsvi.errors import InvalidInputError
from fsvi.validation import as_tensor, check_count, check_fraction

if TYPE_CHECKING:
    from typing_extensions import Self

    from fsvi.predictive.summary import Summary


class Predictive(ABC):
    """A mixture over function draws: p(y|x) = 1/S Σₛ p(y|fₛ(x)).

    Its attributes are tensors of shape (samples, n, ...), dicts of such tensors, or plain values that all parts share.
    So predictions can be indexed, moved, divided and joined without knowledge of their kind.

    A class of your own needs `samples`, `variance`, `log_prob` and `score`. All other functions have a default, or say
    in one sentence that the distribution does not have them.
    """

    samples: Tensor
    """(samples, n, outputs): each draw's mean of the targets; for classes, their probabilities"""
    score_name: ClassVar[str]
    """what `score` measures: "entropy", "kernel distance" or "standard deviation", in words for people"""
    is_numeric: ClassVar[bool] = False
    """whether targets are numbers, so that errors, quantiles and intervals have a meaning"""

    # The distribution -----------------------------------------------------------------------------------------------

    @property
    def mean(self) -> Tensor:
        """(n, outputs): class probabilities, or E[y]."""
        return self.samples.mean(0)

    @property
    def function_variance(self) -> Tensor:
        """Variance of the function alone, without noise, (n, outputs): the epistemic part."""
        return self.samples.var(0, correction=0)

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """(n, outputs): how much the draws' class probabilities vary, or Var[y]."""

    @abstractmethod
    def log_prob(self, y: Any) -> Tensor:
        """log p(y|x), the log of the mean density over draws, (n,). Missing targets (NaN) do not count."""

    @property
    @abstractmethod
    def score(self) -> Tensor:
        """The uncertainty score that the method's authors use, (n,): one number per input, larger is less certain.

        Referral, detection and every ranking in the reports use it. Classification uses the predictive entropy unless
        the method has a score of its own; regression uses the predictive standard deviation.
        """

    def point(self) -> Tensor:
        """One prediction per input in the form of targets: the most probable class, or E[y]."""
        return self.mean

    def distribution(self) -> Distribution:
        """The mixture as a `torch.distributions` object with batch shape (n,)."""
        self._refuse("view as a torch.distributions object")

    def sample(self, num_samples: int = 1, seed: int = 0) -> Tensor:
        """Targets (num_samples, n, ...). Each sample takes one draw of the function for all inputs, then the noise.

        Args:
            num_samples: The number of samples.
            seed: The seed of the samples.
        """
        generator = torch.Generator().manual_seed(seed)
        draws = torch.randint(self.num_draws, (check_count("num_samples", num_samples),), generator=generator)
        return self.noisy(draws, generator)

    def noisy(self, draws: Tensor, generator: torch.Generator) -> Tensor:
        """One sample of the targets from each of these draws of the function, (len(draws), n, ...)."""
        self._refuse("samples")

    def cdf(self, y: Any, below: bool = False) -> Tensor:
        """P(Y ≤ y) of each target by itself, (n, outputs); with `below` P(Y < y)."""
        self._refuse("distribution function")

    def quantile(self, q: float | Sequence[float]) -> Tensor:
        """The smallest value with a distribution function of at least `q`, of each target by itself.

        Args:
            q: Probabilities between 0 and 1. One number gives (n, outputs), several (len(q), n, outputs).
        """
        if isinstance(q, (int, float)):
            return self.one_quantile(_check_probability(q))
        return torch.stack([self.one_quantile(_check_probability(each)) for each in q])

    def one_quantile(self, q: float) -> Tensor:
        """The quantile of one probability, (n, outputs)."""
        self._refuse("quantiles")

    # Classes --------------------------------------------------------------------------------------------------------

    def class_probabilities(self) -> Tensor:
        """(n, classes), for predictions of one class per input."""
        self._refuse("class probabilities", ": give a prediction of classes.")

    def class_log_probs(self) -> Tensor:
        """(samples, n, classes): every draw's log-probabilities, for predictions of one class per input."""
        self._refuse("class probabilities", ": give a prediction of classes.")

    def with_class_logits(self, logits: Tensor) -> Self:
        """A copy with other logits of the draws, (samples, n, classes); everything else stays."""
        self._refuse("class probabilities", ": give a prediction of classes.")

    def entropy(self) -> Tensor:
        """Predictive entropy in nats, (n,): total uncertainty."""
        self._refuse("entropy", ': use its `score` instead, which is "own" among uncertainties.')

    def expected_entropy(self) -> Tensor:
        """Mean entropy over draws, (n,): what would remain if the function were known."""
        self._refuse("entropy")

    def mutual_information(self) -> Tensor:
        """`entropy` − `expected_entropy`, (n,): the part due to the unknown function."""
        self._refuse("mutual information")

    # Numbers --------------------------------------------------------------------------------------------------------

    def crps(self, y: Any) -> Tensor:
        """∫ (F(t) − 1[t ≥ y])² dt for each input and target, (n, outputs), with F the distribution function."""
        self._refuse("CRPS", ": give a prediction of numbers.")

    def moved(self, samples: Tensor, factor: Any) -> Self:
        """With these means of the draws, and noise whose standard deviation is multiplied by `factor`."""
        self._refuse("scale that could change")

    def column(self, index: int) -> Self:
        """The prediction of one target or label by itself."""
        return self.mapped(lambda values: values[..., index : index + 1])

    # For people and files -------------------------------------------------------------------------------------------

    def columns(self) -> dict[str, Tensor]:
        """What to write into a table, one number per input and column."""
        return named("mean", self.mean) | {"score": self.score}

    def graph_outputs(self) -> dict[str, Tensor]:
        """What an exported graph returns, by name, with one row per input."""
        return {"mean": self.mean, "score": self.score}

    def constant_nll(self, y: Tensor) -> float | None:
        """The mean −log p(y) of the best prediction that ignores inputs; None if it is unknown."""
        return None

    def summary(self) -> Summary:
        """Mean, variance, score and the parts of the uncertainty without the draws."""
        from fsvi.predictive.summary import Summary

        return Summary(self)

    # Rows and draws -------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.samples.shape[1]

    @property
    def num_draws(self) -> int:
        """The number of draws of the function, S."""
        return len(self.samples)

    def __getitem__(self, rows: Any) -> Self:
        """The predictions of some inputs, by an index, a slice, indices or a mask; one index gives one row."""
        if isinstance(rows, int):
            rows = slice(rows, rows + 1 or None)
            if len(range(len(self))[rows]) != 1:
                raise IndexError(f"index {rows.start} is out of range for {len(self)} predictions.")
        if not isinstance(rows, slice):
            rows = as_tensor("rows", rows)
            rows = rows.long() if rows.numel() == 0 else rows
            if rows.dtype == torch.bool and rows.shape != (len(self),):
                raise InvalidInputError(f"the mask has shape {tuple(rows.shape)}; predictions have ({len(self)},).")
        return self.mapped(lambda values: self._rows(values, rows))

    def draws(self, chosen: slice | Tensor) -> Self:
        """The prediction from some of the draws."""
        return self.mapped(lambda values: values[chosen])

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """On another device or in another floating type, with the arguments of `Tensor.to`."""
        return self.mapped(lambda values: values.to(*args, **kwargs))

    def cpu(self) -> Self:
        """On the CPU."""
        return self.to("cpu")

    def detach(self) -> Self:
        """Without gradients."""
        return self.mapped(Tensor.detach)

    def mapped(self, function: Callable[[Tensor], Tensor]) -> Self:
        """A copy with `function` applied to every tensor."""
        return self._combined([self], lambda parts: function(parts[0]))

    _row_dim: ClassVar[int] = 1

    def _rows(self, values: Tensor, rows: slice | Tensor) -> Tensor:
        index = rows if isinstance(rows, slice) else rows.to(values.device)
        return values[(slice(None),) * self._row_dim + (index,)]

    def _combined(self, parts: Sequence[Self], combine: Callable[[list[Tensor]], Tensor]) -> Self:
        joined = copy.copy(self)
        for name in vars(self):
            setattr(joined, name, _combine([getattr(part, name) for part in parts], combine))
        return joined

    def _refuse(self, what: str, hint: str = ".") -> NoReturn:
        raise InvalidInputError(f"a {type(self).__name__} has no {what}{hint}")


def mixture(parts: Sequence[Predictive]) -> Predictive:
    """The draws of several predictions of the same inputs as one; each part weighs as many as it has."""
    _check_kinds(parts)
    return parts[0]._combined(parts, torch.cat)


def concatenate(parts: Sequence[Predictive]) -> Predictive:
    """Predictions of several batches of inputs as one.

    Args:
        parts: Predictions of the same kind and with the same number of draws.
    """
    _check_kinds(parts)
    counts = {part.num_draws for part in parts}
    if len(counts) > 1:
        raise InvalidInputError(f"the parts have {sorted(counts)} draws: predict all with the same num_samples.")
    return parts[0]._combined(parts, lambda values: torch.cat(values, dim=parts[0]._row_dim))


def select(p: Predictive, rows: Tensor) -> Predictive:
    """The predictions of some inputs.

    Args:
        p: The predictions.
        rows: The indices of the inputs.
    """
    return p[rows]


def named(name: str, values: Tensor) -> dict[str, Tensor]:
    """Columns of values (n, outputs), numbered if there is more than one output."""
    if values.shape[1] == 1:
        return {name: values[:, 0]}
    return {f"{name}_{index}": values[:, index] for index in range(values.shape[1])}


def log_mean_exp(logs: Tensor) -> Tensor:
    """log 1/S Σₛ exp over the first dimension."""
    return logs.logsumexp(0) - math.log(len(logs))


def precise(values: Tensor) -> Tensor:
    """In float32 at least: probabilities with the eight bits of a bfloat16 do not add up to one."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def as_targets(y: Any, samples: Tensor) -> Tensor:
    """The targets as a tensor on the samples' device, one per prediction."""
    y = as_tensor("y", y).to(samples.device)
    if y.dim() == 0 or len(y) != samples.shape[1]:
        raise InvalidInputError(f"there are {samples.shape[1]} predictions, but targets of shape {tuple(y.shape)}.")
    return y


def as_numbers(y: Any, samples: Tensor) -> Tensor:
    """The targets in the shape (n, outputs) and the type of the samples."""
    y = as_targets(y, samples)
    if y.numel() != samples[0].numel():
        raise InvalidInputError(f"targets have shape {tuple(y.shape)}; predicted is {tuple(samples.shape[1:])}.")
    y = y.reshape(samples.shape[1:])
    return y if y.dtype == torch.float64 else y.to(samples.dtype)


def _combine(values: list[Any], combine: Callable[[list[Tensor]], Tensor]) -> Any:
    first = values[0]
    if isinstance(first, dict):
        return {key: _combine([value[key] for value in values], combine) for key in first}
    return combine(values) if isinstance(first, Tensor) else first


def _check_kinds(parts: Sequence[Predictive]) -> None:
    if not parts:
        raise InvalidInputError("there are no predictions to join: give at least one.")
    kinds = sorted({type(part).__name__ for part in parts})
    if len(kinds) > 1:
        raise InvalidInputError(f"predictions of different kinds cannot be joined: {', '.join(kinds)}.")


def _check_probability(q: float) -> float:
    if check_fraction("q", q) == 0:
        raise InvalidInputError("q=0 must be a probability above 0 and below 1.")
    return float(q)
