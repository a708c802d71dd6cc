"""Context distributions: where the posterior over functions is held to the prior."""

from fsvi.functions.contexts.general import Batch, Context, Corrupted, Dataset, Mixture, Monochrome, Uniform
from fsvi.functions.contexts.shifted_rows import ShiftedRows

__all__ = ["Batch", "Context", "Corrupted", "Dataset", "Mixture", "Monochrome", "ShiftedRows", "Uniform"]
