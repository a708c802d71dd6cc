"""p(y|f), how targets arise from the network's outputs, and p(y|x), the prediction that draws of f give.

Outputs have the shape (samples, n, outputs). A network with outputs at every position of an input, as of a text or an
image, has (samples, n, positions..., outputs). Predictions and targets have positions in the same place.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import torch
from torch import Tensor, nn

from fsvi.errors import InvalidInputError
from fsvi.networks.calls import is_exporting
from fsvi.serialization import Configurable
from fsvi.validation import as_tensor, check_count, check_fraction, check_labels

if TYPE_CHECKING:
    from typing_extensions import Self

_ENTROPIES = ("entropy", "expected_entropy", "mutual_information")


class Likelihood(Configurable, nn.Module, ABC):
    """The distribution of a target given the network's outputs f at its input.

    A likelihood of your own needs `check_targets`, `nll` and `predictive`. Constructor arguments are kept as attributes
    of the same name, so that files can describe it.
    """

    takes_weights: ClassVar[bool] = False
    """whether `nll` averages with the `weights` of a minibatch's examples, by `average`"""
    is_numeric: ClassVar[bool] = False
    """whether targets are numbers: some methods have other defaults for them"""
    has_probit: ClassVar[bool] = False
    """whether probabilities are sigmoids or a softmax of outputs, so that `Laplace` can average them in closed form"""
    weights: Tensor | None = None
    """weights (n,) of the examples of the minibatch in hand, 1 on average over all data; None: all are equal"""

    def bind(self, num_outputs: int) -> None:
        """Get ready for a network with this number of outputs; the method that uses the likelihood calls it."""

    @abstractmethod
    def check_targets(self, y: Tensor, num_outputs: int) -> Tensor:
        """The targets in the form that `nll` takes, or an error that says what is wrong with them."""

    @abstractmethod
    def nll(self, f: Tensor, y: Tensor) -> Tensor:
        """−log p(y|f), a scalar: summed over targets, averaged by `average` over everything else.

        Args:
            f: Outputs, (..., n, outputs).
            y: Targets that `check_targets` returned.
        """

    @abstractmethod
    def predictive(self, f: Tensor) -> Predictive:
        """The predictive distribution of function draws `f` (samples, n, positions..., outputs)."""

    def observed(self, y: Tensor) -> Tensor | None:
        """Which examples or positions have a target; None if all have one. The others do not count in `nll`."""
        return None

    def num_observed(self, y: Tensor) -> int | Tensor:
        """The number of examples that have a target; a tensor where it must be counted, so that no device waits."""
        observed = self.observed(y)
        return len(y) if observed is None else observed.sum().clamp_min(1)

    def average(self, losses: Tensor, observed: Tensor | None = None) -> Tensor:
        """The mean of losses (..., n) over the examples that are `observed`, each multiplied by its weight if any."""
        losses = losses if self.weights is None else losses * self.weights
        if observed is None:
            return losses.mean()
        shares = observed.to(losses.dtype).mean().clamp_min(1 / max(1, observed.numel()))
        return losses.mean() / shares

    def fisher_root(self, f: Tensor, y: Tensor | None = None) -> Tensor:
        """S, (n, outputs, columns), with S Sᵀ the Fisher information of `f` (n, outputs) in a target: its curvature.

        Args:
            f: Outputs, (n, outputs).
            y: Targets; those that are missing have no curvature. None if all are present.
        """
        raise InvalidInputError(f"{type(self).__name__} has no `fisher_root`, which methods with curvature need.")


@contextmanager
def weighted(module: nn.Module, weights: Tensor | None) -> Iterator[None]:
    """While a step is made, let all likelihoods in `module` know the weights of the minibatch's examples."""
    likelihoods = [] if weights is None else [part for part in module.modules() if isinstance(part, Likelihood)]
    for likelihood in likelihoods:
        likelihood.weights = weights
    try:
        yield
    finally:
        for likelihood in likelihoods:
            likelihood.weights = None


class Predictive(ABC):
    """A mixture over function draws: p(y|x) = 1/S Σₛ p(y|fₛ(x)).

    Shapes are written for one prediction per input. With outputs at every position of an input, (n, outputs) stands for
    (n, positions..., outputs) and (n,) for (n, positions...). So targets have the shape that `fsvi.fit` takes.

    Attributes are tensors of shape (samples, n, ...), dicts of such tensors, or plain values that all parts share. So
    predictions can be indexed, moved, divided and joined without knowledge of their kind.

    A class of your own needs `samples`, `variance`, `log_prob` and `score`. All other functions have a default, or say
    in one sentence that the distribution does not have them.
    """

    samples: Tensor
    """(samples, n, outputs): each draw's mean of the targets; for classes, their probabilities"""
    score_name: ClassVar[str]
    """what `score` measures: "entropy", "kernel distance" or "standard deviation", in words for people"""
    is_numeric: ClassVar[bool] = False
    """whether targets are numbers, so that errors, quantiles and intervals have a meaning"""
    ignore_index: int | None = None
    """the label of inputs without a target, which do not count; None if there is none"""
    outputs_name: ClassVar[str] = "outputs"
    """what the last axis holds: "classes", "labels" or "targets" """

    # The distribution -----------------------------------------------------------------------------------------------

    @property
    def mean(self) -> Tensor:
        """(n, outputs): class probabilities, or E[y]."""
        return self.samples.mean(0)

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """(n, outputs): how much the draws' class probabilities vary, or Var[y]."""

    @property
    def std(self) -> Tensor:
        """The root of the variance, (n, outputs)."""
        return self.variance.sqrt()

    @property
    def function_variance(self) -> Tensor:
        """Variance of the function alone, without noise, (n, outputs): the epistemic part."""
        return self.samples.var(0, correction=0)

    @abstractmethod
    def log_prob(self, y: Any) -> Tensor:
        """log p(y|x), the log of the mean density over draws, (n,). Missing targets have 0."""

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
        each = [q] if isinstance(q, (int, float)) else list(q)
        if any(check_fraction("q", value) == 0 for value in each):
            raise InvalidInputError("q=0 must be a probability above 0 and below 1.")
        values = torch.stack([self.one_quantile(float(value)) for value in each])
        return values[0] if isinstance(q, (int, float)) else values

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
        """What to write into a table: one number per input and column, or per position, input after input."""
        p = self.rows()
        return named("mean", p.mean) | {"score": p.score}

    def graph_outputs(self) -> dict[str, Tensor]:
        """What an exported graph returns, by name, with one row per input."""
        return {"mean": self.mean, "score": self.score}

    def constant_nll(self, y: Tensor) -> float | None:
        """The mean −log p(y) of the best prediction that ignores inputs; None if it is unknown."""
        return None

    def summary(self) -> Summary:
        """Mean, variance, score and the parts of the uncertainty without the draws."""
        return Summary(self)

    def __repr__(self) -> str:
        kind = type(self).__name__.removesuffix("Predictive")
        return f"Predictive({kind}, {self._shape_in_words()}, {_counted(self.num_draws, 'draws')})"

    def _shape_in_words(self) -> str:
        num, *positions, outputs = self.mean.shape
        places = [_counted("×".join(map(str, positions)), "positions")] if positions else []
        return ", ".join([_counted(num, "inputs"), *places, _counted(outputs, self.outputs_name)])

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
        axes = (slice(None),) * self._row_dim
        return self.mapped(lambda values: values[(*axes, rows if isinstance(rows, slice) else rows.to(values.device))])

    def rows(self) -> Self:
        """The same predictions with every position as an input of its own, input after input."""
        first, last = self._row_dim, self._row_dim + self.mean.dim() - 2
        return self if first == last else self.mapped(lambda values: values.flatten(first, last))

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

    def _combined(self, parts: Sequence[Self], combine: Callable[[list[Tensor]], Tensor]) -> Self:
        joined = copy.copy(self)
        for name in vars(self):
            setattr(joined, name, _combine([getattr(part, name) for part in parts], combine))
        return joined

    def _refuse(self, what: str, hint: str = ".") -> NoReturn:
        raise InvalidInputError(f"a {type(self).__name__} has no {what}{hint}")


class ClassPredictive(Predictive):
    """What predictions of classes and of labels share; entropies are in nats."""

    score_name = "entropy"

    @abstractmethod
    def outcomes(self) -> Tensor:
        """Every draw's log-probabilities of all that can happen, (samples, n, outcomes)."""

    @property
    def variance(self) -> Tensor:
        """Variance over draws of each probability, (n, outputs): the epistemic part."""
        return self.function_variance

    def entropy(self) -> Tensor:
        """H[E p], (n,), summed over labels: total uncertainty."""
        return torch.special.entr(self.outcomes().exp().mean(0)).sum(-1)

    def expected_entropy(self) -> Tensor:
        """E H[p] over draws, (n,), summed over labels: what would remain if the function were known."""
        logs = self.outcomes()
        return -(logs.exp() * logs).nan_to_num(0.0).sum(-1).mean(0)

    def mutual_information(self) -> Tensor:
        """H[E p] − E H[p], (n,), summed over labels: the part due to the unknown function.

        It is the mean of KL(p ‖ E p) over draws, exactly 0 where draws agree: a difference of entropies would rank
        such inputs by its rounding.
        """
        logs = self.outcomes()
        top = logs.amax(0)
        log_mean = top + (logs - top).exp().mean(0).log()
        return (logs.exp() * (logs - log_mean)).nan_to_num(0.0).mean(0).sum(-1).clamp_min(0.0)

    @property
    def score(self) -> Tensor:
        """The predictive entropy, (n,)."""
        return self.entropy()

    @abstractmethod
    def labels(self) -> Tensor:
        """The most probable class, or which labels are more probable than not."""

    def point(self) -> Tensor:
        """The labels."""
        return self.labels()

    def graph_outputs(self) -> dict[str, Tensor]:
        """Probabilities, entropy and mutual information."""
        return {"mean": self.mean, "entropy": self.entropy(), "mutual_information": self.mutual_information()}


def _kept(name: str) -> Any:
    def value(summary: Summary) -> Tensor:
        if name not in summary._values:
            raise InvalidInputError(f"the summary of a {summary.kind} has no {name.replace('_', ' ')}.")
        return summary._values[name]

    return value


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
        self.outputs_name = p.outputs_name  # type: ignore[misc]
        self.ignore_index = p.ignore_index
        self._values = {
            "mean": p.mean,
            "variance": p.variance,
            "function_variance": p.function_variance,
            "score": p.score,
            "point": p.point(),
        }
        for name in (*_ENTROPIES, "class_probabilities"):
            try:
                self._values[name] = getattr(p, name)()
            except InvalidInputError:  # this kind does not have it
                continue

    @property
    def samples(self) -> Tensor:  # type: ignore[override]
        """Not kept."""
        raise InvalidInputError("a summary has no draws: predict without summary=True.")

    @property
    def num_draws(self) -> int:
        """As if the mean were the only draw."""
        return 1

    mean = property(_kept("mean"))
    variance = property(_kept("variance"))
    function_variance = property(_kept("function_variance"))
    score = property(_kept("score"))
    point = _kept("point")
    class_probabilities = _kept("class_probabilities")
    entropy = _kept("entropy")
    expected_entropy = _kept("expected_entropy")
    mutual_information = _kept("mutual_information")

    def log_prob(self, y: Any) -> Tensor:
        """The log of the probability of class y, (n,)."""
        if "class_probabilities" not in self._values:
            self._refuse("log-probability")
        probabilities = self.class_probabilities()
        y, observed = as_labels(y, probabilities, self)
        return probabilities.gather(-1, y[..., None]).squeeze(-1).log().masked_fill(~observed, 0.0)

    def columns(self) -> dict[str, Tensor]:
        """Mean, variance and score, and the entropies where there are any."""
        p = self.rows()
        entropies = {name: p._values[name] for name in _ENTROPIES if name in p._values}
        return named("mean", p.mean) | named("variance", p.variance) | {"score": p.score} | entropies

    def summary(self) -> Summary:
        """Itself."""
        return self

    def __len__(self) -> int:
        return len(self._values["mean"])

    def __repr__(self) -> str:
        return f"Summary({self.kind.removesuffix('Predictive')}, {self._shape_in_words()})"

    def draws(self, chosen: Any) -> Summary:
        """Not kept."""
        self._refuse("draws")

    def column(self, index: int) -> Summary:
        """Not kept by target."""
        self._refuse("columns of its own")

    def _refuse(self, what: str, hint: str = "") -> NoReturn:
        raise InvalidInputError(f"the summary of a {self.kind} has no {what}: predict without summary=True.")


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


# For the families -----------------------------------------------------------------------------------------------------


def precise(values: Tensor) -> Tensor:
    """In float32 at least: probabilities with the eight bits of a bfloat16 do not add up to one."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def check_defined(values: Tensor, axis: int = 1) -> None:
    """Refuse predictions whose numbers overflowed; `axis` is that of inputs. Graphs to export are not checked."""
    if is_exporting() or bool((finite := values.isfinite()).all()):
        return
    wrong = int((~finite).movedim(axis, 0).flatten(1).any(1).sum())
    raise InvalidInputError(
        f"the network's outputs are NaN or too large for a prediction at {wrong} of {values.shape[axis]} inputs: the "
        "inputs may be far outside the range of the training data, so check their scale, or drop them."
    )


def log_mean_exp(logs: Tensor) -> Tensor:
    """log 1/S Σₛ exp over the first dimension."""
    return logs.logsumexp(0) - math.log(len(logs))


def named(name: str, values: Tensor) -> dict[str, Tensor]:
    """Columns of values (n, outputs), numbered if there is more than one output."""
    if values.shape[1] == 1:
        return {name: values[:, 0]}
    return {f"{name}_{index}": values[:, index] for index in range(values.shape[1])}


def as_labels(y: Any, probabilities: Tensor, p: Predictive | None = None) -> tuple[Tensor, Tensor]:
    """Labels (n, positions...) for probabilities (n, positions..., classes), and which are observed; others are 0.

    What counts as missing is known to the prediction `p`: its `ignore_index`, or NaN among the labels of `Bernoulli`.
    Targets that are probabilities count if they are sure of one class.
    """
    *shape, num_classes = probabilities.shape
    y = as_tensor("y", y).to(probabilities.device)
    if y.is_floating_point() and y.shape == probabilities.shape:
        if not bool(((y == 0) | (y == 1)).all() and (y.sum(-1) == 1).all()):
            raise InvalidInputError("targets are probabilities, but a label per input is needed: give y.argmax(-1).")
        y = y.argmax(-1)
    y = _shaped(y, (*shape, 1)).squeeze(-1)
    observed = torch.ones_like(y, dtype=torch.bool)
    if p is not None and p.ignore_index is not None:
        observed = y != p.ignore_index
    elif p is not None and p.outputs_name == "labels":
        observed = ~y.isnan()
        y = check_present(y).nan_to_num(0.0).long()
    return check_labels(y.masked_fill(~observed, 0).reshape(-1), num_classes).reshape(shape), observed


def check_present(y: Tensor) -> Tensor:
    """Labels that say what is present: 0, 1, or NaN where nobody knows."""
    if not bool(((y == 0) | (y == 1) | y.isnan()).all()):
        raise InvalidInputError("labels of a Bernoulli prediction must be 0 or 1, or NaN where there is none.")
    return y


def as_numbers(y: Any, samples: Tensor) -> Tensor:
    """Targets in the shape (n, positions..., targets) and the type of the samples."""
    y = _shaped(as_tensor("y", y).to(samples.device), samples.shape[1:])
    return y if y.dtype == torch.float64 else y.to(samples.dtype)


def _shaped(y: Tensor, shape: Sequence[int]) -> Tensor:
    """Targets in this shape; they may lack the last axis if it is 1, or have it in the place of an image's channels."""
    num, *positions, outputs = shape
    if y.shape == (num, outputs, *positions) != (num, *positions, outputs):
        return y.movedim(1, -1)
    if tuple(y.shape) not in {tuple(shape), (num, *positions) if outputs == 1 else tuple(shape)}:
        wanted = tuple(shape[:-1]) if outputs == 1 else tuple(shape)
        raise InvalidInputError(f"targets have shape {tuple(y.shape)}; these predictions need {wanted}.")
    return y.reshape(shape)


def _counted(num: int | str, name: str) -> str:
    return f"{num} {name}" if num not in (1, "1") else f"1 {name[: -2 if name == 'classes' else -1]}"


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
