"""Context distributions: where the posterior over functions is held to the prior."""

from fsvi.functions.contexts.general import Batch, Context, Corrupted, Dataset, Mixture, Monochrome, Uniform
from fsvi.functions.contexts.shifted_rows import ShiftedRows
from fsvi.functions.contexts.tokens import ReplacedTokens, ShuffledTokens

__all__ = [
    "Batch",
    "Context",
    "Corrupted",
    "Dataset",
    "Mixture",
    "Monochrome",
    "ReplacedTokens",
    "ShiftedRows",
    "ShuffledTokens",
    "Uniform",
]
