"""p(y|x): the prediction that draws of the function give."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from numbers import Integral
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch import distributions as D
from torch.utils._python_dispatch import TorchDispatchMode

from fsvi.errors import InvalidInputError
from fsvi.networks.calls import is_exporting
from fsvi.networks.devices import make_generator
from fsvi.validation import as_tensor, check_count, check_fraction, check_labels

if TYPE_CHECKING:
    from typing_extensions import Self

_PROPERTIES = ("mean", "variance", "function_variance", "score")
_FUNCTIONS = ("class_probabilities", "labels", "entropy", "expected_entropy", "mutual_information")
"""what a summary keeps"""
_BISECTIONS = 60
"""halvings of the interval around a quantile: more than the bits of a float64"""
_NODES = 200
"""points of the quadrature on each side of the target"""


class Predictive:
    """A mixture over function draws: p(y|x) = 1/S Σₛ p(y|fₛ(x)).

    Shapes are written for one prediction per input. With outputs at every position of an input, (n, outputs) stands for
    (n, positions..., outputs) and (n,) for (n, positions...). So targets have the shape that `fsvi.fit` takes.

    Attributes are tensors of shape (samples, n, ...), dicts of such tensors, or plain values that all parts share. So
    predictions can be indexed, moved, divided and joined without knowledge of their kind.

    A class of your own whose draws are not of a family of `torch.distributions` needs `samples` and `log_prob`; numbers
    also `variance`. What classes have follows from `outcomes`, what numbers have from `cdf`; without them, it is
    refused in one sentence.

    Args:
        family: The distribution of targets given a draw of the function, such as `torch.distributions.Normal`.
        parameters: Its arguments, each of shape (samples, n, ...) or smaller, as in broadcasting.
    """

    is_numeric: bool = False
    """whether targets are numbers, so that errors, quantiles and intervals have a meaning"""
    ignore_index: int | None = None
    """the label of inputs without a target, which do not count; None if there is none"""

    def __init__(self, family: Callable[..., D.Distribution], **parameters: Tensor) -> None:
        self.family = family
        shape = torch.broadcast_shapes(*(values.shape for values in parameters.values()))
        self.parameters = {name: precise(values).expand(shape) for name, values in parameters.items()}

    # The distribution -----------------------------------------------------------------------------------------------

    def given_function(self) -> D.Distribution:
        """The distribution of targets given each draw of the function, with batch shape (samples, n, ...)."""
        return self.family(**self.parameters, validate_args=False)

    @property
    def samples(self) -> Tensor:
        """(samples, n, outputs): each draw's mean of the targets; for classes, their probabilities."""
        return self.given_function().mean

    @property
    def mean(self) -> Tensor:
        """(n, outputs): class probabilities, or E[y]."""
        return self.samples.mean(0)

    @property
    def variance(self) -> Tensor:
        """(n, outputs): how much the draws' class probabilities vary, or Var[y]."""
        return self.function_variance

    @property
    def std(self) -> Tensor:
        """The root of the variance, (n, outputs)."""
        return self.variance.sqrt()

    @property
    def function_variance(self) -> Tensor:
        """Variance of the function alone, without noise, (n, outputs): the epistemic part."""
        return self.samples.var(0, correction=0)

    def log_prob(self, y: Any) -> Tensor:
        """log p(y|x) = log 1/S Σₛ Π p(y_l|fₛ(x)) over targets or labels, (n,). Missing ones have 0."""
        y = as_numbers(y, self.samples)
        missing = y.isnan()
        logs = self.given_function().log_prob(torch.where(missing, self.mean.to(y.dtype), y))
        return log_mean_exp(logs.masked_fill(missing, 0.0).sum(-1))

    @property
    def score(self) -> Tensor:
        """The uncertainty score that the method's authors use, (n,): one number per input, larger is less certain.

        Referral, detection and every ranking in the reports use it. It is the predictive entropy of classes, or the
        root of the variance averaged over targets, unless the method has a score of its own.
        """
        return self.variance.mean(-1).sqrt() if self.is_numeric else self.entropy()

    def sample(self, num_samples: int = 1, seed: int = 0) -> Tensor:
        """Targets (num_samples, n, ...). Each sample takes one draw of the function for all inputs, then the noise."""
        device = self.samples.device
        generator = make_generator(seed, device)
        shape = (check_count("num_samples", num_samples),)
        draws = self.draws(torch.randint(self.num_draws, shape, generator=generator, device=device))
        with _Drawing(generator):
            return draws.given_function().sample()

    # Classes and labels ---------------------------------------------------------------------------------------------

    def outcomes(self) -> Tensor:
        """Every draw's log-probabilities of all that can happen, (samples, n, outcomes)."""
        self._refuse("class probabilities: give a prediction of classes")

    def tempered(self, temperature: float) -> Self:
        """A copy whose draws have logits divided by a temperature; everything else stays."""
        self._refuse("class probabilities: give a prediction of classes with its draws, such as method.predict(x)")

    def class_probabilities(self) -> Tensor:
        """The mean over draws, (n, classes), for predictions of one class per input."""
        return self.outcomes().exp().mean(0)

    def labels(self) -> Tensor:
        """The most probable class, (n,)."""
        return self.class_probabilities().argmax(-1)

    def entropy(self) -> Tensor:
        """H[E p] in nats, (n,), summed over labels: total uncertainty."""
        return torch.special.entr(self.outcomes().exp().mean(0)).sum(-1)

    def expected_entropy(self) -> Tensor:
        """E H[p] over draws, (n,), summed over labels: what would remain if the function were known."""
        return torch.special.entr(self.outcomes().exp()).sum(-1).mean(0)

    def mutual_information(self) -> Tensor:
        """H[E p] − E H[p], (n,), summed over labels: the part due to the unknown function.

        It is the mean of KL(p ‖ E p) over draws, exactly 0 where draws agree: a difference of entropies would rank
        such inputs by its rounding.
        """
        logs = self.outcomes()
        top = logs.amax(0)
        log_mean = top + (logs - top).exp().mean(0).log()
        return (logs.exp() * (logs - log_mean)).nan_to_num(0.0).mean(0).sum(-1).clamp_min(0.0)

    # Numbers --------------------------------------------------------------------------------------------------------

    def cdf(self, y: Any, below: bool = False) -> Tensor:
        """P(Y ≤ y) of each target by itself, (n, targets); with `below` P(Y < y)."""
        self._refuse("distribution function: give a prediction of numbers")

    def quantile(self, q: float | Sequence[float]) -> Tensor:
        """The smallest value with a distribution function of at least `q`, of each target by itself.

        It is found by bisection, between bounds that hold for any distribution with this mean and variance (Cantelli).

        Args:
            q: Probabilities between 0 and 1. One number gives (n, targets), several (len(q), n, targets).
        """
        q = as_tensor("q", q, torch.float64).tolist()
        if not isinstance(q, float):
            return torch.stack([self.quantile(value) for value in q])
        if not 0 < q < 1:
            raise InvalidInputError(f"q={q!r} must be a probability above 0 and below 1.")
        low = self.mean - self.std * ((1 - q) / q) ** 0.5
        high = self.mean + self.std * (q / (1 - q)) ** 0.5
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            enough = self.cdf(middle) >= q
            low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
        return high

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """The lower and upper ends of the central interval, (n, targets) each.

        Args:
            level: The probability of the interval.
        """
        tail = (1 - check_fraction("level", level)) / 2
        lower, upper = self.quantile([tail, 1 - tail])
        return lower, upper

    def crps(self, y: Any) -> Tensor:
        """∫ (F(t) − 1[t ≥ y])² dt for each input and target, (n, targets), with F the distribution function.

        Gauss–Legendre quadrature of F² below y and of (1 − F)² above, each half-line mapped to (0, 1).
        """
        y = as_numbers(y, self.samples)
        unit = self.std + (y - self.mean).abs()
        nodes, weights = np.polynomial.legendre.leggauss(_NODES)
        total = torch.zeros_like(y)
        for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
            step, slope = node / (1 - node), 1 / (1 - node) ** 2
            squares = self.cdf(y - step * unit).square() + (1 - self.cdf(y + step * unit)).square()
            total = total + weight * slope * squares
        return total * unit

    def moved(self, samples: Tensor, factor: Any) -> Self:
        """With these means of the draws, and noise whose standard deviation is multiplied by `factor`."""
        if not {"loc", "scale"} <= getattr(self, "parameters", {}).keys():
            self._refuse("scale that could change")
        scale = self.parameters["scale"] * factor
        return self._with_parameters({**self.parameters, "loc": samples, "scale": scale})

    # For people and files -------------------------------------------------------------------------------------------

    def columns(self) -> dict[str, Tensor]:
        """What to write into a table: one number per input and column, or per position, input after input."""
        p = self.rows()
        if not p.is_numeric:
            best = {"label": p.labels(), "probability": p.class_probabilities().amax(-1)}
            return best | {"entropy": p.entropy(), "mutual_information": p.mutual_information()}
        lower, upper = p.interval()
        return named({"mean": p.mean, "std": p.std, "lower": lower, "upper": upper})

    def graph_outputs(self) -> dict[str, Tensor]:
        """What an exported graph returns, by name, with one row per input."""
        if self.is_numeric:
            return {"mean": self.mean, "std": self.std}
        return {"mean": self.mean, "entropy": self.entropy(), "mutual_information": self.mutual_information()}

    def summary(self) -> Summary:
        """Mean, variance, score and the parts of the uncertainty without the draws."""
        return Summary(self)

    def __repr__(self) -> str:
        kind = type(self).__name__.removesuffix("Predictive")
        return f"Predictive({kind}, {self.num_draws} draws, mean {tuple(self.mean.shape)})"

    # Rows and draws -------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.samples.shape[1]

    @property
    def num_draws(self) -> int:
        """The number of draws of the function, S."""
        return len(self.samples)

    def __getitem__(self, rows: Any) -> Self:
        """The predictions of some inputs, by an index, a slice, indices or a mask; one index gives one row."""
        if isinstance(rows, Integral):
            rows = [range(len(self))[int(rows)]]
        return self.mapped(lambda values: values[:, rows])

    def rows(self) -> Self:
        """The same predictions with every position as an input of its own, input after input."""
        positions = self.mean.dim() - 2
        return self.mapped(lambda values: values.flatten(1, 1 + positions)) if positions else self

    def column(self, index: int) -> Self:
        """The prediction of one target or one label by itself, given its number."""
        return self.mapped(lambda values: values[..., index : index + 1])

    def draws(self, chosen: slice | Tensor) -> Self:
        """The prediction from some of the draws."""
        return self.mapped(lambda values: values[chosen])

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """On another device or in another floating type, with the arguments of `Tensor.to`."""
        return self.mapped(lambda values: values.to(*args, **kwargs))

    def mapped(self, function: Callable[[Tensor], Tensor]) -> Self:
        """A copy with `function` applied to every tensor."""
        return self._combined([self], lambda parts: function(parts[0]))

    def _combined(self, parts: Sequence[Predictive], combine: Callable[[list[Tensor]], Tensor]) -> Self:
        joined = copy.copy(self)
        for name in vars(self):
            setattr(joined, name, _combine([getattr(part, name) for part in parts], combine))
        return joined

    def _with_parameters(self, parameters: dict[str, Tensor]) -> Self:
        other = copy.copy(self)
        other.parameters = parameters
        return other

    def _refuse(self, what: str) -> NoReturn:
        raise InvalidInputError(f"a {type(self).__name__} has no {what}.")


class Summary(Predictive):
    """The numbers that most readers of a prediction need, without its draws.

    It has the mean, the variance, the function's part of it and the score; for classes and labels also `labels`, the
    three entropies and `class_probabilities`. The log-probability is known for classes only. Samples, quantiles and
    distribution functions need draws.

    Args:
        p: The prediction to summarize.
    """

    values: dict[str, Tensor]
    """by name, (1, n, ...), as if there were one draw"""

    def __init__(self, p: Predictive) -> None:
        self.kind = type(p).__name__
        self.is_numeric, self.ignore_index = p.is_numeric, p.ignore_index
        self.values = {name: getattr(p, name)[None] for name in _PROPERTIES}
        for name in _FUNCTIONS:
            with suppress(InvalidInputError):  # this kind does not have it
                self.values[name] = getattr(p, name)()[None]

    @property
    def samples(self) -> Tensor:
        """Not kept."""
        self._refuse("draws")

    @property
    def num_draws(self) -> int:
        """As if the mean were the only draw."""
        return 1

    def log_prob(self, y: Any) -> Tensor:
        """The log of the probability of class y, (n,)."""
        probabilities = self.class_probabilities()
        y, observed = as_labels(y, probabilities, self.ignore_index)
        return probabilities.gather(-1, y[..., None]).squeeze(-1).log().masked_fill(~observed, 0.0)

    def summary(self) -> Summary:
        """Itself."""
        return self

    def __len__(self) -> int:
        return len(self.mean)

    def __repr__(self) -> str:
        return f"Summary({self.kind.removesuffix('Predictive')}, mean {tuple(self.mean.shape)})"

    def _refuse(self, what: str) -> NoReturn:
        raise InvalidInputError(f"the summary of a {self.kind} has no {what}: predict without summary=True.")


def _kept(name: str) -> Callable[[Summary], Tensor]:
    def value(summary: Summary) -> Tensor:
        if name not in summary.values:
            summary._refuse(name.replace("_", " "))
        return summary.values[name][0]

    return value


for _name in _PROPERTIES:
    setattr(Summary, _name, property(_kept(_name)))
for _name in _FUNCTIONS:
    setattr(Summary, _name, _kept(_name))


def gathered(parts: Iterable[Predictive], num: int) -> Summary:
    """The summary of parts, at least one, with `num` inputs in total.

    The numbers are copied to tensors that are allocated once: small tensors that stay among large ones that go would
    fragment the heap, and the process would grow.
    """
    whole: Summary | None = None
    start = 0
    for part in parts:
        summary = part.summary()
        whole = whole or summary.mapped(lambda values: values.new_empty(1, num, *values.shape[2:]))
        stop = start + len(summary)
        for name, values in summary.values.items():
            whole.values[name][:, start:stop] = values
        start = stop
    assert whole is not None
    return whole


def mixture(parts: Sequence[Predictive]) -> Predictive:
    """The draws of several predictions of the same inputs as one; each part weighs as many as it has."""
    joined = _joined(parts, 0)
    if joined.is_numeric:  # finite draws may be too far apart
        check_defined(joined.variance[None])
    return joined


def concatenate(parts: Sequence[Predictive]) -> Predictive:
    """Predictions of several batches of inputs as one.

    Args:
        parts: Predictions of the same kind and with the same number of draws.
    """
    counts = {part.num_draws for part in parts}
    if len(counts) > 1:
        raise InvalidInputError(f"the parts have {sorted(counts)} draws: predict all with the same num_samples.")
    return _joined(parts, 1)


def _joined(parts: Sequence[Predictive], dim: int) -> Predictive:
    kinds = sorted({type(part).__name__ for part in parts})
    if len(kinds) != 1:
        raise InvalidInputError(f"predictions to join must be of one kind, not of {', '.join(kinds) or 'none'}.")
    return parts[0]._combined(parts, lambda values: torch.cat(values, dim))


def _combine(values: list[Any], combine: Callable[[list[Tensor]], Tensor]) -> Any:
    first = values[0]
    if isinstance(first, dict):
        return {key: _combine([value[key] for value in values], combine) for key in first}
    return combine(values) if isinstance(first, Tensor) else first


class _Drawing(TorchDispatchMode):
    """All random numbers come from one generator, since torch.distributions would take torch's global one."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self._own = {"generator": generator}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        func = getattr(func.overloadpacket, "generator", func)
        takes = any(argument.name == "generator" for argument in func._schema.arguments)
        return func(*args, **{**(kwargs or {}), **(self._own if takes else {})})


# For the families -----------------------------------------------------------------------------------------------------


def precise(values: Tensor) -> Tensor:
    """In float32 at least: probabilities with the eight bits of a bfloat16 do not add up to one."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def check_defined(values: Tensor) -> None:
    """Refuse predictions if one of these numbers (samples, n, ...) overflowed. Graphs to export are not checked."""
    if is_exporting() or bool(values.isfinite().all()):
        return
    wrong = (~values.isfinite()).transpose(0, 1).flatten(1).any(1)
    raise InvalidInputError(
        f"the network's outputs are NaN or too large for a prediction at {int(wrong.sum())} of {len(wrong)} inputs: "
        "the inputs may be far outside the range of the training data, so check their scale, or drop them."
    )


def log_mean_exp(logs: Tensor) -> Tensor:
    """log 1/S Σₛ exp over the first dimension."""
    return logs.logsumexp(0) - math.log(len(logs))


def named(parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Columns of values (n, outputs), numbered if there is more than one output."""
    widths = {values.shape[1] for values in parts.values()}
    if widths == {1}:
        return {name: values[:, 0] for name, values in parts.items()}
    return {f"{name}_{at}": values[:, at] for at in range(max(widths)) for name, values in parts.items()}


def as_labels(y: Any, probabilities: Tensor, ignore_index: int | None = None) -> tuple[Tensor, Tensor]:
    """Labels (n, positions...) for probabilities (n, positions..., classes), and which are observed; others are 0.

    Labels of `Bernoulli` may be floats, NaN where there is none. Targets that are probabilities count if they are sure
    of one class.
    """
    *shape, num_classes = probabilities.shape
    y = as_tensor("y", y).to(probabilities.device)
    if y.is_floating_point() and y.shape == probabilities.shape:
        if not bool(((y == 0) | (y == 1)).all() and (y.sum(-1) == 1).all()):
            raise InvalidInputError("targets are probabilities, but a label per input is needed: give y.argmax(-1).")
        y = y.argmax(-1)
    y = _shaped(y, (*shape, 1)).squeeze(-1)
    observed = ~y.isnan() if ignore_index is None else y != ignore_index
    if y.is_floating_point() or y.dtype == torch.bool:
        y = check_present(y).nan_to_num(0.0).long()
    return check_labels(y.masked_fill(~observed, 0).reshape(-1), num_classes).reshape(shape), observed


def check_present(y: Tensor) -> Tensor:
    """Labels that say what is present: 0, 1, or NaN where nobody knows."""
    if not bool(((y == 0) | (y == 1) | y.isnan()).all()):
        raise InvalidInputError("labels that are no integers must be 0 or 1, or NaN where there is none.")
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
    wanted = tuple(shape[:-1]) if outputs == 1 else tuple(shape)
    if tuple(y.shape) not in (tuple(shape), wanted):
        raise InvalidInputError(f"targets have shape {tuple(y.shape)}; these predictions need {wanted}.")
    return y.reshape(shape)
