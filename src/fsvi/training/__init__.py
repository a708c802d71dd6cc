"""One training loop for all methods: batches, optimisers, checkpoints, progress."""

from fsvi.training.fit import History, fit
from fsvi.training.optimizers import cosine

__all__ = ["History", "cosine", "fit"]
