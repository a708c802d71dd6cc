"""One training loop for all methods: batches, optimisers, checkpoints, progress."""

from fsvi.cost.allocation import keep_memory
from fsvi.training.fit import fit
from fsvi.training.history import History
from fsvi.training.optimizers import cosine

__all__ = ["History", "cosine", "fit", "keep_memory"]
