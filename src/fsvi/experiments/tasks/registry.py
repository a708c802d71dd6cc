"""Every task by its name, in the order of the report."""

from __future__ import annotations

from fsvi.experiments.task import Task
from fsvi.experiments.tasks.cifar10 import TASK as CIFAR10
from fsvi.experiments.tasks.continual import CONTINUAL_TASKS
from fsvi.experiments.tasks.diabetic_retinopathy import TASK as RETINA
from fsvi.experiments.tasks.fashion_mnist import TASK as FASHION_MNIST
from fsvi.experiments.tasks.reviews import TASK as REVIEWS
from fsvi.experiments.tasks.rotated_mnist import TASK as ROTATED_MNIST
from fsvi.experiments.tasks.toy_regression import TOY_REGRESSION_TASKS
from fsvi.experiments.tasks.two_moons import TASK as TWO_MOONS
from fsvi.experiments.tasks.uci_regression import UCI_TASKS

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        FASHION_MNIST,
        CIFAR10,
        ROTATED_MNIST,
        RETINA,
        REVIEWS,
        *CONTINUAL_TASKS,
        *UCI_TASKS,
        TWO_MOONS,
        *TOY_REGRESSION_TASKS,
    )
}
