"""Predictions without their draws, for many inputs in little memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from fsvi.errors import InvalidInputError
from fsvi.predictive.base import Predictive, as_targets, named
from fsvi.validation import check_labels

_KINDS = ("entropy", "expected_entropy", "mutual_information")


class Summary(Predictive):
    """The numbers that most readers of a prediction need, without its draws.

    It has the mean, the variance, the function's part of it, the score and `point`; for classes and labels also the
    three entropies and `class_probabilities`. The log-probability is known for classes only. Samples, quantiles and
    distribution functions need draws.

    Args:
        p: The prediction to summarize.
    """

    _row_dim = 0

    def __init__(self, p: Predictive) -> None:
        self.kind = type(p).__name__
        self.score_name = p.score_name  # type: ignore[misc]
        self.is_numeric = p.is_numeric  # type: ignore[misc]
        self._values = {
            "mean": p.mean,
            "variance": p.variance,
            "function_variance": p.function_variance,
            "score": p.score,
            "point": p.point(),
            **_known({name: getattr(p, name) for name in (*_KINDS, "class_probabilities")}),
        }

    @property
    def samples(self) -> Tensor:  # type: ignore[override]
        """Not kept."""
        raise InvalidInputError("a summary has no draws: predict without summary=True.")

    @property
    def num_draws(self) -> int:
        """As if the mean were the only draw."""
        return 1

    @property
    def mean(self) -> Tensor:
        """(n, outputs): class probabilities, or E[y]."""
        return self._values["mean"]

    @property
    def variance(self) -> Tensor:
        """(n, outputs): that of the prediction."""
        return self._values["variance"]

    @property
    def function_variance(self) -> Tensor:
        """Variance of the function alone, (n, outputs)."""
        return self._values["function_variance"]

    @property
    def score(self) -> Tensor:
        """That of the prediction, (n,)."""
        return self._values["score"]

    def point(self) -> Tensor:
        """The most probable class, or E[y]."""
        return self._values["point"]

    def class_probabilities(self) -> Tensor:
        """(n, classes), for predictions of one class per input."""
        return self._value("class_probabilities")

    def entropy(self) -> Tensor:
        """Predictive entropy in nats, (n,)."""
        return self._value("entropy")

    def expected_entropy(self) -> Tensor:
        """Mean entropy over draws, (n,)."""
        return self._value("expected_entropy")

    def mutual_information(self) -> Tensor:
        """`entropy` − `expected_entropy`, (n,)."""
        return self._value("mutual_information")

    def log_prob(self, y: Any) -> Tensor:
        """The log of the probability of class y, (n,)."""
        probabilities = self.class_probabilities()
        y = check_labels(as_targets(y, probabilities[None]), probabilities.shape[1])
        return probabilities.gather(1, y[:, None]).squeeze(1).log()

    def columns(self) -> dict[str, Tensor]:
        """Mean, variance and score, and the entropies where there are any."""
        entropies = {name: self._values[name] for name in _KINDS if name in self._values}
        return named("mean", self.mean) | named("variance", self.variance) | {"score": self.score} | entropies

    def summary(self) -> Summary:
        """Itself."""
        return self

    def __len__(self) -> int:
        return len(self._values["mean"])

    def draws(self, chosen: Any) -> Summary:
        """Not kept."""
        self._refuse("draws", ": predict without summary=True.")

    def column(self, index: int) -> Summary:
        """Not kept by target."""
        self._refuse("columns of its own: take p.column(i) before the summary")

    def _value(self, name: str) -> Tensor:
        if name not in self._values:
            raise InvalidInputError(f"the summary of a {self.kind} has no {name.replace('_', ' ')}.")
        return self._values[name]


def gathered(parts: Iterable[Predictive], num: int) -> Summary:
    """The summaries of parts with `num` inputs in total.

    The numbers are copied to tensors that are allocated once: small tensors that stay among large ones that go would
    fragment the heap, and the process would grow.
    """
    whole: Summary | None = None
    start = 0
    for part in parts:
        summary = part.summary()
        whole = whole or summary.mapped(lambda values: values.new_empty(num, *values.shape[1:]))
        stop = start + len(summary)
        for name, values in summary._values.items():
            whole._values[name][start:stop] = values
        start = stop
    if whole is None:
        raise InvalidInputError("there are no predictions to summarize: give at least one.")
    return whole


def _known(functions: dict[str, Any]) -> dict[str, Tensor]:
    """The results of those functions that the prediction has."""
    known = {}
    for name, function in functions.items():
        try:
            known[name] = function()
        except InvalidInputError:
            continue
    return known
