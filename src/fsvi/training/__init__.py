"""One training loop for all methods: batches, optimizers, checkpoints, progress."""

from fsvi.training.callbacks import Callback, TrainingState
from fsvi.training.fit import fit
from fsvi.training.history import History
from fsvi.training.optimizers import adamw, sgd
from fsvi.training.rates import cosine, every_step
from fsvi.training.step import Stepper
from fsvi.training.tasks import fit_tasks

__all__ = [
    "Callback",
    "History",
    "Stepper",
    "TrainingState",
    "adamw",
    "cosine",
    "every_step",
    "fit",
    "fit_tasks",
    "sgd",
]
