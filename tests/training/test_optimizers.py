import math
from functools import partial

import numpy as np
import pytest
import torch

import fsvi
from scenarios import build, classifier, copied, points

OPTIMIZERS = [
    getattr(torch.optim, name)
    for name in ("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop")
] + [torch.optim.Rprop, torch.optim.SGD, "adam", "sgd", partial(torch.optim.SGD, momentum=0.5, nesterov=True)]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
def test_any_optimizer_trains_every_parameter(optimizer):
    method, data = build("learned_noise")
    before = copied(method)
    fsvi.fit(method, data, epochs=3, lr=1e-2, optimizer=optimizer)
    unchanged = {name for name, value in copied(method).items() if value.numel() and torch.equal(value, before[name])}
    assert unchanged == set()


@pytest.mark.parametrize(
    ("schedule", "factor"),
    [
        ("cosine", lambda done: 0.05 + 0.95 * (1 + math.cos(math.pi * done)) / 2),
        (fsvi.training.cosine(final=0.5), lambda done: 0.5 + 0.5 * (1 + math.cos(math.pi * done)) / 2),
        (None, lambda done: 1.0),
        (lambda done: 1 - done, lambda done: 1 - done),
    ],
    ids=["cosine", "cosine(final)", "none", "function"],
)
def test_the_learning_rate_follows_the_schedule_step_by_step(schedule, factor):
    rates = []

    class Spy(torch.optim.SGD):
        def step(self, closure=None):
            rates.append([group["lr"] for group in self.param_groups])
            return super().step(closure)

    method = classifier(stds=fsvi.posteriors.Stds(lr_scale=3.0))
    fsvi.fit(method, points(), epochs=2, batch_size=5, lr=0.1, optimizer=Spy, schedule=schedule)
    expected = [[0.1 * factor(step / 8), 0.3 * factor(step / 8)] for step in range(8)]
    np.testing.assert_allclose(rates, expected, rtol=1e-12)
