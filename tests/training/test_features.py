"""A frozen backbone is computed once, and training is the same as without that."""

import importlib

import pytest
import torch
from torch import nn

import fsvi

NAMES = ("map", "mfvi", "vbll", "fsvi", "fsvi-batch", "fixed")


class Counting(nn.Linear):
    """A layer that counts the rows it has computed."""

    rows = 0

    def forward(self, x):
        type(self).rows += len(x)
        return super().forward(x)


def backbone():
    torch.manual_seed(0)
    layers = [Counting(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.0), nn.Linear(8, 3)]
    net = nn.Sequential(*layers)
    net(torch.randn(50, 3))  # gives BatchNorm statistics
    return net


def data(num=40):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(num, 3, generator=generator)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 1).long()


def make(name, **settings):
    net, likelihood = backbone(), fsvi.Categorical()
    points = 3 * torch.randn(20, 3, generator=torch.Generator().manual_seed(2))
    if name.startswith("fsvi"):
        context = fsvi.contexts.Batch() if name == "fsvi-batch" else fsvi.contexts.Dataset(points)
        return fsvi.FSVI.from_trained(net, likelihood, context, freeze=True, num_context=6, **settings)
    if name == "fixed":
        return fsvi.methods.FixedMeanFSVI(net, likelihood, fsvi.contexts.Dataset(points), num_features=16)
    return fsvi.make_method(name, fsvi.Network(net).frozen(True), likelihood)


def trained(method, epochs=4, **settings):
    Counting.rows = 0
    history = fsvi.fit(method, data(), epochs=epochs, batch_size=8, progress=False, **settings)
    return history, Counting.rows


@pytest.mark.parametrize("name", NAMES)
def test_losses_and_predictions_are_those_without_the_shortcut(name, monkeypatch):
    method, plain = make(name), make(name)
    history, rows = trained(method, epochs=12)
    monkeypatch.setattr(importlib.import_module("fsvi.training.fit"), "use_features", lambda run: None)
    expected, plain_rows = trained(plain, epochs=12)
    assert history.loss == pytest.approx(expected.loss, rel=1e-4)
    x = 3 * torch.randn(30, 3)
    torch.testing.assert_close(method.predict(x).mean, plain.predict(x).mean, rtol=1e-4, atol=1e-5)
    assert rows < plain_rows / 2
    assert all(torch.equal(a, b) for a, b in zip(backbone()[1].buffers(), method.net[1].buffers(), strict=True))


@pytest.mark.parametrize("name", ["fsvi", "vbll"])
def test_a_resumed_training_has_the_same_bits(name, tmp_path, monkeypatch):
    def interrupt(state):
        if state.epoch == 2 and interrupt.armed:
            raise InterruptedError

    monkeypatch.setattr(importlib.import_module("fsvi.training.checkpoints"), "INTERVAL", 0.0)
    whole, parts = make(name), make(name)
    interrupt.armed = False
    trained(whole, callbacks=[interrupt])
    interrupt.armed = True
    with pytest.raises(InterruptedError):
        trained(parts, checkpoint=tmp_path, callbacks=[interrupt])
    interrupt.armed = False
    parts = make(name)
    trained(parts, checkpoint=tmp_path, resume=True, callbacks=[interrupt])
    assert all(torch.equal(a, b) for a, b in zip(whole.state_dict().values(), parts.state_dict().values(), strict=True))


def test_callbacks_and_validation_see_inputs():
    x, y = data()
    seen = []
    method = make("fsvi")
    fsvi.fit(
        method,
        (x, y),
        epochs=3,
        batch_size=8,
        validation=(x, y),
        callbacks=[lambda state: seen.append(state.method.predict(x).mean)],
        progress=False,
    )
    assert seen[-1].equal(method.predict(x).mean) and not seen[0].equal(seen[-1])


@pytest.mark.parametrize(
    "change",
    [
        lambda method: method.net[0].requires_grad_(True),
        lambda method: setattr(method.net[3], "p", 0.5),
        lambda method: setattr(method, "context", fsvi.contexts.Uniform()),
    ],
    ids=["a layer learns", "dropout", "a context that makes new points"],
)
def test_otherwise_the_whole_network_is_computed(change):
    method = make("fsvi")
    change(method)
    assert trained(method)[1] >= 4 * 40


def test_a_prior_that_sees_inputs_gets_them():
    assert trained(make("fsvi", prior=fsvi.priors.Empirical(backbone())))[1] >= 4 * 40


def test_one_epoch_with_many_context_points_is_not_worth_it():
    method = make("fsvi")
    method.context = fsvi.contexts.Dataset(torch.randn(1000, 3))
    _, rows = trained(method, epochs=1)
    assert rows < 200
