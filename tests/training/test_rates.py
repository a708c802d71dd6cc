import math

import pytest
from torch.optim import lr_scheduler

import fsvi
from fsvi.training.loop import Run
from scenarios import classifier, points

POINTS = 20


def rates_of(schedule, epochs=4, batch_size=10, every="epoch", **settings):
    """The learning rate that each epoch, or each step, was made with."""
    seen = []

    class Watch(fsvi.training.Callback):
        def on_train_begin(self, state):
            self.state = state

        def on_step_end(self, state):
            seen.append(used[-1])

    used = []
    method = classifier()
    after = method.after_step
    watch = Watch()
    method.after_step = lambda: (used.append(watch.state.lr), after())
    fsvi.fit(method, points(), epochs=epochs, batch_size=batch_size, lr=1.0, optimizer="sgd", schedule=schedule,
             callbacks=[watch], **settings)  # fmt: skip
    return seen if every == "step" else seen[:: math.ceil(POINTS / batch_size)]


def test_a_torch_scheduler_follows_the_epochs():
    halved = rates_of(lambda optimizer: lr_scheduler.StepLR(optimizer, 2, gamma=0.5))
    assert halved == [1.0, 1.0, 0.5, 0.5]
    assert rates_of(lr_scheduler.ConstantLR) == pytest.approx([1 / 3] * 4)


def test_a_torch_scheduler_can_follow_the_steps():
    schedule = fsvi.training.every_step(lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.5))
    assert rates_of(schedule, epochs=2, every="step") == [1.0, 0.5, 0.25, 0.125]
    accumulated = rates_of(schedule, epochs=2, every="step", accumulate=2)
    assert accumulated == [1.0, 0.5]


def test_a_plateau_is_found_in_the_validation_data(monkeypatch):
    values = iter([-1.0, -2.0, -3.0, -4.0])
    monkeypatch.setattr(Run, "_validate", lambda self, _: self.history.validation.append(next(values)))
    schedule = lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, factor=0.1)  # noqa: E731
    assert rates_of(schedule, validation=points()) == pytest.approx([1.0, 1.0, 1.0, 0.1])
