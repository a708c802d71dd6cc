"""What a server relies on: predictions from many threads, in inference mode, from inputs of any kind."""

import copy
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

import fsvi
from fsvi.errors import InvalidInputError
from fsvi.methods.registry import METHODS

NAMES = [*METHODS, "ensemble:map", "ensemble:fsvi"]
OWN_RULE = ("vogn", "ivon")


def network():
    layers = [nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 8), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(8, 2))


def data(num=12):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(num, 3, generator=generator), torch.arange(num) % 2


def made(name):
    box = fsvi.contexts.Uniform(low=[-2.0] * 3, high=[2.0] * 3)
    settings = {"size": 2} if name.startswith("ensemble:") else {}
    return fsvi.make_method(name, network, fsvi.Categorical(), context=box, **settings)


@cache
def trained(name):
    torch.manual_seed(1)
    method = made(name)
    fsvi.fit(method, data(), epochs=2, batch_size=6, lr=1e-2, progress=False)
    return method


@pytest.mark.parametrize("name", NAMES)
def test_threads_predict_as_one_after_the_other_and_files_in_inference_mode(name, tmp_path):
    method, (x, _) = trained(name), data()
    wanted = [method.predict(x, num_samples=4, seed=seed).mean for seed in range(4)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: method.predict(x, num_samples=4, seed=i % 4).mean, range(24)))
    assert all(torch.equal(value, wanted[i % 4]) for i, value in enumerate(found))
    method.save(tmp_path / "file")
    with torch.inference_mode():  # nothing that concerns training happens in predict
        assert torch.equal(fsvi.load(tmp_path / "file", network()).predict(x, num_samples=4).mean, wanted[0])


class Keeps(nn.Module):
    """A network with state besides its parameters; `what` says which."""

    def __init__(self, what):
        super().__init__()
        self.body, self.head, self.what = nn.Linear(3, 8), nn.Linear(8, 2), what
        self.register_buffer("calls", torch.ones(()))
        self.kept = {"lock": threading.Lock, "file": lambda: sys.__stdout__}.get(what, lambda: None)()

    def forward(self, x):
        h = torch.tanh(self.body(x))
        if self.what == "activation":
            self.kept = h
        if self.what == "buffer":
            self.calls += 1
            return self.head(h / self.calls.clone())
        if self.what == "lock":
            with self.kept:
                return self.head(h)
        return self.head(h)


@pytest.mark.parametrize("what", ["activation", "buffer", "lock", "file"])
def test_a_network_that_keeps_state_predicts_the_same_from_all_threads_and_files(what, tmp_path):
    x, y = data()
    method = fsvi.FSVI(Keeps(what), fsvi.Categorical(), fsvi.contexts.Dataset(x), linearize="conditional")
    fsvi.fit(method, (x, y), epochs=1, batch_size=6, progress=False)
    state, wanted = copy.deepcopy(method.state_dict()), method.predict(x, 3).mean
    with ThreadPoolExecutor(8) as pool:
        assert all(torch.equal(p.mean, wanted) for p in pool.map(lambda _: method.predict(x, 3), range(24)))
    assert all(torch.equal(value, state[key]) for key, value in method.state_dict().items()), "predict changes nothing"
    method.save(tmp_path / "file")
    assert torch.equal(fsvi.load(tmp_path / "file", Keeps(what)).predict(x, 3).mean, wanted)


def test_predictions_stay_the_same_while_another_thread_exports(tmp_path):
    x, _ = data()
    small = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))  # many draws of it are computed together
    method = fsvi.MFVI(small, fsvi.Categorical())
    wanted = method.predict(x, 3).mean
    export = threading.Thread(target=lambda: method.export(tmp_path / "model.pt2", num_samples=2, example=x))
    export.start()
    found = [method.predict(x, 3).mean for _ in iter(export.is_alive, False)]
    assert found and all(torch.equal(mean, wanted) for mean in found)


@pytest.mark.parametrize("likelihood", [fsvi.Gaussian(0.3), fsvi.Poisson(), fsvi.StudentT()])
def test_samples_come_from_their_own_generator_in_every_thread(likelihood):
    p = likelihood.predictive(torch.randn(3, 40, 2))
    wanted = [p.sample(20, seed).clone() for seed in range(4)]
    state = torch.get_rng_state()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: p.sample(20, i % 4), range(400)))
    assert all(torch.equal(values, wanted[i % 4]) for i, values in enumerate(found))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", NAMES)
def test_a_plain_loop_trains_and_state_and_copies_are_those_of_a_module(name):
    torch.manual_seed(1)
    method, (x, y) = made(name), data()
    for learner in method.learners():
        learner.num_data = len(x)
        learner.begin(*method.check_batch(x, y))
    own = method.own_optimizer(1e-2)
    assert (own is not None) == name.endswith(OWN_RULE)
    optimizer = own or torch.optim.SGD(method.parameters(), lr=0.01)
    method.train()
    before = {key: value.clone() for key, value in method.state_dict().items()}
    for _ in range(3):
        optimizer.zero_grad()
        loss = sum(method(x, y).values())
        loss.backward()
        optimizer.step()
        for learner in method.learners():
            learner.after_step()
    state = method.state_dict()
    assert loss.isfinite() and any(not torch.equal(before[key], value) for key, value in state.items())
    copied, other = copy.deepcopy(method), made(name)
    if not any(hasattr(module, "sized_by_data") for module in method.modules()):
        other.load_state_dict(state)
        other.input_shape = method.input_shape
        torch.testing.assert_close(other.predict(x, 3).mean, method.predict(x, 3).mean, rtol=0, atol=0)
    expected = method.predict(x, 3).mean
    with torch.no_grad():
        for p in method.parameters():
            p.zero_()
    assert torch.equal(copied.predict(x, 3).mean, expected), "a copy has tensors of its own"


def test_importing_changes_nothing():
    code = """
import sys, random, numpy, torch, torch.utils.checkpoint as c
frame, apply, hook = c._CheckpointFrame.__init__, c.CheckpointFunction.apply, sys.excepthook
names, states = dict(vars(c)), (torch.get_rng_state(), random.getstate(), str(numpy.random.get_state()))
import fsvi
fsvi.FSVI, fsvi.fit, fsvi.load, fsvi.contexts
assert c._CheckpointFrame.__init__ is frame and c.CheckpointFunction.apply == apply
assert all(vars(c)[name] is value for name, value in names.items())
assert sys.excepthook is hook
assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]
assert str(numpy.random.get_state()) == states[2]
assert not {"sklearn", "matplotlib"} & set(sys.modules), "heavy imports"
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("name", ["map", "fsvi", "duq"])
def test_inputs_that_are_no_plain_floats_work_or_give_one_sentence(name):
    method, (x, _) = trained(name), data()
    integers = torch.ones(4, 3, dtype=torch.long)
    for odd in (integers, x.to("meta"), x.to_sparse(), x.to(torch.complex64)):
        try:
            assert method.predict(odd, 2).mean.isfinite().all()
        except InvalidInputError as error:
            assert str(error).count("\n") == 0
    assert method.predict(np.ones((2, 3), dtype=np.float32), 2).mean.shape == (2, 2)


def test_kronecker_laplace_exports(tmp_path):
    x, y = data()
    trained_map = fsvi.MAP(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)), fsvi.Categorical())
    method = fsvi.Laplace.from_trained(trained_map, (x, y), structure="kron")
    method.export(tmp_path / "model.pt2", num_samples=3, example=x)
    graph = torch.export.load(tmp_path / "model.pt2").module()
    torch.testing.assert_close(graph(x)["mean"], method.predict(x, 3).mean, rtol=1e-4, atol=1e-5)


def test_function_space_empirical_bayes_on_a_tied_head_works_or_gives_one_sentence(make):
    net, x = make("tied_head")
    try:
        method = fsvi.FSEB(net, fsvi.Categorical(), fsvi.contexts.Dataset(x))
        assert sum(method(x, torch.tensor([0, 1, 2, 0])).values()).isfinite()
    except fsvi.errors.FSVIError as error:
        assert str(error).count("\n") == 0
