"""What the paper's tables and searches need to know about each method: titles, scores, and ranges of settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from fsvi.likelihoods import CategoricalPredictive
from fsvi.methods.registry import find_method

if TYPE_CHECKING:
    from optuna import Trial


@dataclass(frozen=True)
class Range:
    """Numbers between two bounds.

    Attributes:
        low: The smallest value.
        high: The largest value.
        linear: Whether to search on a linear scale; the default is a logarithmic one.
    """

    low: float
    high: float
    linear: bool = False

    def suggest(self, trial: Trial, name: str) -> Any:
        """A value for a trial.

        Args:
            trial: The trial.
            name: The setting's name in the study.
        """
        return trial.suggest_float(name, self.low, self.high, log=not self.linear)

    def has(self, value: Any) -> bool:
        """Whether the value can be suggested."""
        return isinstance(value, (int, float)) and self.low <= value <= self.high

    def holding(self, value: Any) -> Range:
        """The range, widened if necessary to include the value; values that are not on its scale change nothing."""
        if not isinstance(value, (int, float)) or (value <= 0 and not self.linear):
            return self
        return replace(self, low=min(self.low, value), high=max(self.high, value))


@dataclass(frozen=True)
class Choice:
    """One of several values.

    Attributes:
        values: The values to choose from.
    """

    values: tuple[Any, ...]

    def suggest(self, trial: Trial, name: str) -> Any:
        """A value for a trial.

        Args:
            trial: The trial.
            name: The setting's name in the study.
        """
        return trial.suggest_categorical(name, self.values)

    def has(self, value: Any) -> bool:
        """Whether the value can be suggested."""
        return value in self.values

    def holding(self, value: Any) -> Choice:
        """The choice including the value. Values are sorted, because Optuna tells searches apart by their order."""
        return self if value is None or self.has(value) else Choice(tuple(sorted((*self.values, value))))


Space: TypeAlias = Mapping[str, Range | Choice]
"""Settings by name, with the values that each may take."""

VARIANCE = "prior_variance"
"""The prior's variance: an argument of parameter-space methods, and of the prior that FSVI is given."""
GAMMA = "gamma"
"""γ of the regularized divergence that GFSVI is given."""


@dataclass(frozen=True)
class Presentation:
    """A method in tables, figures and searches.

    Attributes:
        name: The name on the command line and in result files.
        title: The name in tables and figures.
        averages: Whether it averages parameters during training, which needs a high learning rate to the end.
        score: The name of the uncertainty score by which its authors rank inputs of a classification.
        search: What `python -m paper tune` searches; empty where the method cannot be tuned.
        small_search: What it searches in addition where networks are small.
    """

    name: str
    title: str
    averages: bool = False
    score: str = CategoricalPredictive.score_name
    search: Space = field(default_factory=dict)
    small_search: Space = field(default_factory=dict)


_PARAMETER_SPACE: Space = {VARIANCE: Range(1e-3, 10.0), "num_samples": Choice((1, 5))}
_ENTRIES = [
    Presentation("map", "MAP", search={VARIANCE: Range(1e-3, 1e3)}),
    Presentation("mfvi", "MFVI", search=_PARAMETER_SPACE),
    Presentation("mfvi-tempered", "MFVI tempered", search=_PARAMETER_SPACE),
    Presentation("mfvi-radial", "MFVI radial", search=_PARAMETER_SPACE),
    Presentation(
        "mc-dropout",
        "MC dropout",
        search={"rate": Range(0.01, 0.5, linear=True)},
    ),
    Presentation("swag", "SWAG", averages=True, search={VARIANCE: Range(1e-3, 1e3)}),
    Presentation(
        "duq",
        "DUQ",
        score="kernel distance",
        search={"length_scale": Range(0.05, 1.0), "gradient_penalty": Range(0.005, 0.5)},
    ),
    Presentation("laplace", "Laplace", search={VARIANCE: Range(1e-3, 1e3)}),
    Presentation("vogn", "VOGN", search={VARIANCE: Range(1e-3, 10.0), "damping": Range(1e-4, 1e-1)}),
    Presentation("ivon", "IVON", search={VARIANCE: Range(1e-3, 10.0), "initial_scale": Range(1e-2, 1.0)}),
    Presentation("rank1", "Rank-1", search={VARIANCE: Range(1e-3, 1e3), "prior_std": Range(0.01, 1.0)}),
    Presentation("vbll", "VBLL", search={VARIANCE: Range(1e-3, 1e2)}),
    Presentation(
        "spg",
        "SPG",
        search={"num_context": Choice((8, 16, 32, 64)), "kl_weight": Range(1e-5, 1e-1)},
    ),
    Presentation(
        "fbnn",
        "fBNN",
        search={"num_context": Choice((8, 16, 32)), "kl_weight": Range(1e-5, 1e-1)},
    ),
    Presentation(
        "fs-eb",
        "FS-EB",
        search={
            VARIANCE: Range(1e-2, 1e3),
            "num_context": Choice((4, 8, 16, 32, 64)),
            "kl_weight": Range(1e-5, 1e-1),
        },
    ),
    Presentation(
        "gfsvi",
        "GFSVI",
        search={
            VARIANCE: Range(0.1, 100.0),
            GAMMA: Range(1e-5, 1e-1),
            "num_context": Choice((4, 8, 16, 32, 64)),
            "kl_weight": Range(1e-5, 1e-1),
            "num_samples": Choice((1, 5)),
        },
        small_search={
            "num_context": Choice((8, 16, 32, 64)),
            "num_samples": Choice((1, 4)),
            "stochastic": Choice(("all", "last_layer")),
        },
    ),
    Presentation(
        "fsvi",
        "FSVI",
        search={
            VARIANCE: Range(0.1, 100.0),
            "num_context": Choice((4, 8, 16, 32, 64)),
            "kl_weight": Range(1e-5, 1e-1),
            "num_samples": Choice((1, 5)),
        },
        small_search={
            "num_context": Choice((8, 16, 32, 64)),
            "num_samples": Choice((1, 4, 16)),
            "linearize": Choice(("jvp", "exact")),
            "stochastic": Choice(("all", "last_layer")),
        },
    ),
    Presentation("s-fsvi", "S-FSVI"),
    Presentation("fmgp", "FMGP"),
    Presentation("sngp", "SNGP"),
    Presentation("fsvi-fixed-mean", "FSVI, fixed mean"),
]
METHODS: dict[str, Presentation] = {entry.name: entry for entry in _ENTRIES}
_ENSEMBLE = "ensemble:"


def takes_context(name: str) -> bool:
    """Whether a method, or an ensemble's members, look at points other than the data."""
    return find_method(name).takes_context


def method_title(name: str) -> str:
    """A method's name in tables and figures: "MAP", "Deep ensemble", "FSVI ensemble"; or just `name`."""
    member = name.removeprefix(_ENSEMBLE)
    title = METHODS[member].title if member in METHODS else member
    if name == member:
        return title
    return "Deep ensemble" if member == "map" else f"{title} ensemble"
