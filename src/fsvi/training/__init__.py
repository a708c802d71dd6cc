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

from fsvi.training.callbacks import Callback as Callback
from fsvi.training.callbacks import TrainingState as TrainingState
from fsvi.training.fit import fit as fit
from fsvi.training.history import History as History
from fsvi.training.loop import Stepper as Stepper
from fsvi.training.optimizers import adamw as adamw
from fsvi.training.optimizers import sgd as sgd
from fsvi.training.rates import cosine as cosine
from fsvi.training.rates import every_step as every_step
from fsvi.training.tasks import fit_tasks as fit_tasks
