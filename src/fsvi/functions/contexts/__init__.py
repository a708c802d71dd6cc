"""Context distributions: where the posterior over functions is held to the prior.

Examples:
    >>> box = fsvi.contexts.Uniform(low=[-4, -4], high=[4, 4])
    >>> context = fsvi.contexts.Mixture([fsvi.contexts.Batch(), box], [0.5, 0.5])
    >>> context.sample(6, torch.zeros(10, 2)).shape  # six points: three of the minibatch, three of the box
    torch.Size([6, 2])
"""

from fsvi.functions.contexts.general import Batch, Context, Corrupted, Dataset, Mixture, Monochrome, Uniform
from fsvi.functions.contexts.shifted_rows import ShiftedRows
from fsvi.functions.contexts.suitable import Suitable
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
    "Suitable",
    "Uniform",
]
