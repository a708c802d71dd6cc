import math
import random
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fsvi
from fsvi.methods.registry import make_method
from scenarios import box, build, classifier, copied, curve, dense, points, same_bits


@pytest.mark.parametrize("name", ["jvp", "learned_noise", "radial_batch_norm", "rank1_batch_norm"])
def test_a_seed_decides_every_bit(name):
    runs = []
    for seed in (1, 1, 2):
        method, data = build(name)
        torch.manual_seed(len(runs))
        history = fsvi.fit(method, data, epochs=3, batch_size=8, seed=seed)
        runs.append({"tensors": copied(method), "loss": history.loss, "terms": history.terms})
    assert same_bits(runs[0], runs[1])
    assert not same_bits(runs[0], runs[2])


@pytest.mark.parametrize("bad", [False, True])
def test_global_random_states_are_left_as_they_were(bad):
    method, (x, y) = build("conditional")
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    if bad:
        with pytest.raises(fsvi.errors.InvalidInputError):
            fsvi.fit(method, (x, y + 5), epochs=2)
    else:
        fsvi.fit(method, (x, y), epochs=2, batch_size=8, validation=TensorDataset(x, y))
    assert before[:2] == (random.getstate(), np.random.get_state()[1].tolist())
    assert torch.equal(before[2], torch.get_rng_state())


def test_validation_does_not_change_what_is_learned():
    loader = DataLoader(TensorDataset(*points(50)), batch_size=6, shuffle=True)
    runs = []
    for validation in (None, points(50), loader):
        method = classifier()
        fsvi.fit(method, points(), epochs=3, batch_size=8, validation=validation)
        runs.append(copied(method))
    assert same_bits(runs[0], runs[1]) and same_bits(runs[0], runs[2])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "adma"}, "optimizer='adma'.*did you mean 'adam'"),
        ({"optimizer": torch.optim.LBFGS}, "LBFGS.*parameter groups"),
        ({"schedule": lambda done: -1.0}, r"schedule\(0.0\)=-1.0"),
        ({"lr": 0.0}, "lr=0.0"),
        ({"epochs": 0}, "epochs=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"seed": -1}, "seed=-1"),
        ({"patience": 2}, "patience=2"),
        ({"validation": (points()[0], points()[1] + 1)}, r"validation.*1\.\.2"),
        ({"device": "cudaa"}, "device='cudaa'"),
        ({"resume": True}, "resume=True"),
        ({"clip_norm": -1.0}, "clip_norm"),
        ({"accumulate": 0}, "accumulate"),
        ({"precision": "fp61"}, "fp16"),
    ],
)
def test_a_bad_argument_is_named_before_anything_happens(settings, message):
    method = classifier()
    before = copied(method)
    with pytest.raises(fsvi.errors.InvalidInputError, match=message):
        fsvi.fit(method, points(), **{"epochs": 2, **settings})
    assert same_bits(copied(method), before)


@pytest.mark.parametrize("name", ["fsvi", "gfsvi", "laplace", "vogn", "spg"])
def test_methods_train_in_bf16_and_keeps_its_own_type(name):
    method = make_method(name, dense(), fsvi.Categorical(), context=fsvi.contexts.Uniform(widen=0.5))
    history = fsvi.fit(method, points(), epochs=2, batch_size=8, lr=1e-2, precision="bf16")
    assert all(math.isfinite(loss) for loss in history.loss)
    assert method.predict(points()[0]).mean.dtype == torch.float32
    assert {value.dtype for value in method.state_dict().values() if value.is_floating_point()} <= {
        torch.float32,
        torch.float64,
    }


@pytest.mark.parametrize("make", [fsvi.training.adamw, partial(fsvi.training.sgd, 0.8, nesterov=True)])
def test_weight_decay_acts_on_point_estimates_only(make):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 1))
    likelihood = fsvi.Gaussian(0.3, learn_noise=True)
    method = fsvi.FSVI(net, likelihood, context=box(), stochastic="last_layer")
    decays = {}

    def look(state):
        for group in state.optimizer.param_groups:
            decays.update({id(p): group["weight_decay"] for p in group["params"]})

    fsvi.fit(method, curve(), epochs=1, optimizer=make(weight_decay=0.2), callbacks=[look])
    assert decays[id(method.net[0].weight)] == 0.2
    assert decays[id(method.net[2].weight)] == decays[id(method.posterior.log_std)] == 0.0
    assert decays[id(method.likelihood.log_noise)] == 0.0
    fsvi.fit(fsvi.MAP(net, likelihood), curve(), epochs=1, optimizer="adamw", callbacks=[look])


def test_a_step_of_sgd_follows_the_gradient_and_the_decay():
    net = nn.Sequential(nn.Linear(2, 1))
    x, y = curve()
    before = net[0].weight.detach().clone()
    residuals = (net(x) - y.reshape(-1, 1)).detach()
    gradient = residuals.T @ x / len(x) / 0.5**2  # of the mean negative log-likelihood
    method = fsvi.MAP(net, fsvi.Gaussian(0.5), prior_variance=None)
    make = fsvi.training.sgd(momentum=0.5, nesterov=True, weight_decay=0.3)
    fsvi.fit(method, (x, y), epochs=1, batch_size=len(x), lr=0.1, optimizer=make, schedule=None)
    wanted = before - 0.1 * (1 + 0.5) * (gradient + 0.3 * before)  # Nesterov's first step
    torch.testing.assert_close(method.net[0].weight.detach(), wanted)


def test_validation_without_any_target_is_refused():
    x, y = torch.randn(20, 2), torch.randn(20, 1)
    method = fsvi.MAP(fsvi.networks.mlp(2, (4,), 1), fsvi.Gaussian())
    with pytest.raises(fsvi.errors.InvalidInputError, match="no target of the validation data"):
        fsvi.fit(method, (x, y), epochs=1, validation=(x, torch.full_like(y, torch.nan)))
