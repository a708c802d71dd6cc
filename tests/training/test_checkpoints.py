import itertools
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import fsvi
from fsvi.serialization import read_tree
from scenarios import FAST, box, classifier, copied, dense, points, same_bits

RUN = {"epochs": 3, "batch_size": 10, "lr": 1e-2}


def outcome(folder):
    """Everything that a run's last checkpoint holds, but for the time it took."""
    tree = read_tree(Path(folder) / "checkpoint.fsvi", "fsvi checkpoint")
    del tree["state"]["history"]["seconds"]
    return tree


class Unplugged(BaseException):
    """Nobody catches this."""


def interrupt_after(method, steps):
    """Make the method's `after_step` fail after so many steps."""
    count = iter(range(steps))

    def after_step():
        if next(count, None) is None:
            raise Unplugged

    method.after_step = after_step


# Exact resume


class Noisy(torch.utils.data.Dataset):
    """Examples with noise that the workers of a loader draw."""

    def __len__(self):
        return len(points()[1])

    def __getitem__(self, i):
        x, y = points()
        return x[i] + 0.1 * torch.randn(x.shape[1:]), y[i]


@pytest.mark.parametrize("place", ["loader", "sampler", "worker"])
def test_the_random_states_of_a_loader_its_sampler_and_its_workers_are_kept(place, tmp_path):
    def loader():
        data, generator = TensorDataset(*points()), torch.Generator().manual_seed(4)
        if place == "worker":
            return DataLoader(Noisy(), batch_size=10, num_workers=1, persistent_workers=True)
        if place == "sampler":
            return DataLoader(data, batch_size=10, sampler=RandomSampler(data, generator=generator))
        return DataLoader(data, batch_size=10, shuffle=True, generator=generator)

    method = fsvi.MAP(dense(), fsvi.Categorical())
    fsvi.fit(method, loader(), checkpoint=tmp_path / "whole", **RUN)
    broken, resumed = (fsvi.MAP(dense(), fsvi.Categorical()) for _ in range(2))
    interrupt_after(broken, 3)
    with pytest.raises(Unplugged):
        fsvi.fit(broken, loader(), checkpoint=tmp_path / "parts", **RUN)
    fsvi.fit(resumed, loader(), checkpoint=tmp_path / "parts", resume=True, **RUN)
    assert same_bits(copied(resumed), copied(method))


# Killed

KILLED = ["conditional", "batch_norm"]


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Runs of two methods, each killed at random moments and resumed, beside the same runs left alone."""
    folder, tests = tmp_path_factory.mktemp("killed"), Path(__file__).parent
    path = os.pathsep.join([str(tests.parent), str(Path(fsvi.__file__).parents[1])])
    command = [sys.executable, tests / "kill.py", folder, *KILLED]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=True, timeout=300)
    return folder


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes to fork")
@pytest.mark.parametrize("name", KILLED)
def test_killed_at_random_moments_and_resumed_it_ends_in_the_same_bits(killed, name):
    whole, parts = (outcome(killed / name / folder) for folder in ("whole", "killed"))
    assert len(whole["state"]["history"]["loss"]) == 20
    assert same_bits(whole, parts)
    left = {file.name for file in (killed / name / "killed").iterdir()}
    assert left - {"checkpoint.lock"} == {"checkpoint.fsvi"}


# When it is written


@pytest.fixture
def interruptible():
    """A shell's background job ignores Ctrl-C: hear it, whatever started the tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_keeps_the_last_checkpoint(tmp_path, interruptible):
    method = classifier()
    steps = iter(range(3))

    def after_step():
        if next(steps, None) is None:
            signal.raise_signal(signal.SIGINT)

    method.after_step = after_step
    with pytest.raises(KeyboardInterrupt):
        fsvi.fit(method, points(), checkpoint=tmp_path, **RUN)
    assert len(outcome(tmp_path)["state"]["history"]["loss"]) == 1


# Two trainings in one folder

OTHER = """
import sys, fsvi
from scenarios import classifier, points

def wait(state):
    print("training", flush=True)
    sys.stdin.readline()

fsvi.fit(classifier(), points(), epochs=2, seed=1, checkpoint=sys.argv[1], callbacks=[wait])
"""


def test_a_folder_belongs_to_one_training_at_a_time(tmp_path, monkeypatch):
    """The second one is refused, and takes nothing from the first; a killed one holds no folder."""
    monkeypatch.setattr("fsvi.training.checkpoints._PATIENCE", 0.1)
    path = os.pathsep.join([str(Path(__file__).parents[1]), str(Path(fsvi.__file__).parents[1])])
    command = [sys.executable, "-c", OTHER, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, **pipes) as other:
        assert other.stdout.readline() == "training\n"
        being_written = tmp_path / ".checkpoint.fsvi.0123456789abcdef"
        being_written.write_bytes(b"half a checkpoint")
        for seed in (1, 2):
            with pytest.raises(fsvi.errors.InvalidInputError, match=f"{tmp_path} belongs to another training"):
                fsvi.fit(classifier(), points(), checkpoint=tmp_path, seed=seed, resume=True, **RUN)
        assert being_written.exists()
        other.kill()
    fsvi.fit(classifier(), points(), checkpoint=tmp_path, **RUN)


# What is refused


@pytest.fixture
def finished(tmp_path):
    fsvi.fit(classifier(), points(), checkpoint=tmp_path, **RUN)
    return tmp_path


def refuse(method, message, folder, data=None, kind=fsvi.errors.InvalidInputError, **settings):
    before, bits = copied(method), (folder / "checkpoint.fsvi").read_bytes()
    with pytest.raises(kind, match=message):
        fsvi.fit(method, data or points(), checkpoint=folder, **{"resume": True, **RUN, **settings})
    assert same_bits(copied(method), before)
    assert (folder / "checkpoint.fsvi").read_bytes() == bits


def test_an_earlier_run_is_not_overwritten(finished):
    refuse(classifier(), "resume=True", finished, resume=False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 5}, "epochs=3, not 5"),
        ({"lr": 0.1}, "lr=0.01, not 0.1"),
        ({"optimizer": partial(torch.optim.Adam, betas=(0.8, 0.9))}, "optimizer.groups.0.betas.0=0.9, not 0.8"),
        ({"schedule": None}, r"schedule.1=0.86\d*, not 1.0"),
        ({"validation": points()}, "validation.0=None, not 20"),
        ({"data": (points()[0], 1 - points()[1])}, "with data='"),
    ],
)
def test_other_settings_of_the_run_are_refused(finished, settings, message):
    refuse(classifier(), message, finished, **settings)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (lambda: classifier(linearize="jvp"), "linearize='conditional', not 'jvp'"),
        (lambda: classifier(context=fsvi.contexts.Uniform(-3, 4)), "with context.settings.high"),
        (lambda: classifier(prior=fsvi.priors.Induced()), "prior.class='Constant', not 'Induced'"),
        (lambda: fsvi.MAP(dense(), fsvi.Categorical()), "=.*None"),
        (
            lambda: fsvi.FSVI(nn.Sequential(nn.Linear(2, 7), nn.Linear(7, 2)), fsvi.Categorical(), box(), **FAST),
            r"with parameters.0='0.weight \(6, 2\)', not '0.weight \(7, 2\)'|with network.head='3', not '1'",
        ),
    ],
)
def test_another_method_or_network_is_refused(finished, method, message):
    refuse(method(), message, finished)


class Counting(fsvi.training.Callback):
    """Multiplies the learning rate by what it remembers, so that a forgotten state shows."""

    def __init__(self):
        self.epochs = 0

    def on_epoch_end(self, state):
        self.epochs += 1
        for p in state.method.parameters():
            p.data.mul_(1 + 1e-3 * self.epochs)

    def state_dict(self):
        return {"epochs": self.epochs}

    def load_state_dict(self, state):
        self.epochs = state["epochs"]


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        return itertools.cycle(zip(*points(), strict=True))


OPTIONS = {
    "fp16": {"precision": "fp16"},
    "radam": {"optimizer": "radam"},
    "lambda": {"schedule": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)},
    "one cycle": {
        "schedule": fsvi.training.every_step(lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=25))
    },
    "warm-up": {
        "schedule": lambda optimizer: lr_scheduler.SequentialLR(
            optimizer,
            [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2), lr_scheduler.ExponentialLR(optimizer, 0.5)],
            milestones=[2],
        )
    },
    "plateau": {"schedule": lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=1.0)},
    "callback": {"callbacks": [Counting]},
    "stream": {"data": Endless(), "num_data": 20},
    "validation": {"validation": points(), "patience": 50},
    "all": {"clip_norm": 0.1, "accumulate": 2, "precision": "bf16", "optimizer": "adamw", "callbacks": [Counting]},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_resumed_training_with_any_option_ends_in_the_same_bits(tmp_path, name):
    options = dict(OPTIONS[name])
    data = options.pop("data", points())

    def train(folder, *more, **settings):
        method = classifier(num_samples=2)
        callbacks = [make() for make in options.get("callbacks", [])] + list(more)
        given = {**options, "callbacks": callbacks, "checkpoint": folder}
        history = fsvi.fit(method, data, epochs=5, batch_size=4, lr=0.05, **given, **settings)
        return {"tensors": copied(method), "loss": history.loss}

    interrupted: list[int] = []
    whole = train(tmp_path / "whole")

    class Interrupt(fsvi.training.Callback):
        def on_epoch_end(self, state):
            if state.epoch == 3 and not interrupted:
                interrupted.append(3)
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "parts", Interrupt())
    assert same_bits(train(tmp_path / "parts", Interrupt(), resume=True), whole)
