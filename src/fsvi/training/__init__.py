"""One training loop for all methods: batches, optimizers, checkpoints, progress."""

from fsvi.training.fit import fit
from fsvi.training.history import History
from fsvi.training.loop import take_step
from fsvi.training.optimizers import cosine

__all__ = ["History", "cosine", "fit", "take_step"]
