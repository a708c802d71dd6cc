"""One training loop for all methods: batches, optimizers, checkpoints, progress.

Examples:
    >>> x, y = fsvi.data.two_moons(100, noise=0.1, seed=0)
    >>> net = fsvi.networks.mlp(2, (20,), 2)
    >>> class Printer(fsvi.training.Callback):
    ...     def on_epoch_end(self, state):
    ...         print("epoch", state.epoch)
    >>> history = fsvi.fit(fsvi.MAP(net, fsvi.Categorical()), (x, y), epochs=2, seed=0, callbacks=[Printer()])
    epoch 1
    epoch 2
"""

from fsvi.training.callbacks import Callback, TrainingState
from fsvi.training.fit import fit
from fsvi.training.history import History
from fsvi.training.loop import Stepper
from fsvi.training.optimizers import adamw, sgd
from fsvi.training.rates import cosine, every_step
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
