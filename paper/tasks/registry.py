"""Every task by its name, in the order of the report."""

from __future__ import annotations

from paper.task import Task
from paper.tasks.cifar10 import TASK as CIFAR10
from paper.tasks.continual import CONTINUAL_TASKS
from paper.tasks.diabetic_retinopathy import TASK as RETINA
from paper.tasks.fashion_mnist import TASK as FASHION_MNIST
from paper.tasks.posthoc import POSTHOC_TASKS
from paper.tasks.pretrained import PRETRAINED
from paper.tasks.reviews import TASK as REVIEWS
from paper.tasks.rotated_mnist import TASK as ROTATED_MNIST
from paper.tasks.toys import TOY_REGRESSION_TASKS, TWO_MOONS
from paper.tasks.uci_regression import UCI_TASKS

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
        *POSTHOC_TASKS,
        PRETRAINED,
    )
}
