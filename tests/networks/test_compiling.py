"""torch.compile with the backend "aot_eager": it traces and differentiates as usual, without a C++ compiler."""

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

import fsvi
from fsvi.networks.compiling import Compiled, compile_module
from fsvi.training import step

BACKEND = "aot_eager"


def method(make) -> fsvi.Method:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 3))
    return make(net, fsvi.Categorical())


def data() -> tuple[Tensor, Tensor]:
    return torch.randn(20, 4, generator=torch.Generator().manual_seed(1)), torch.arange(20) % 3


def fsvi_conditional(net, likelihood) -> fsvi.Method:
    return fsvi.FSVI(net, likelihood, fsvi.contexts.Batch(), num_context=4, linearize="conditional")


@pytest.mark.parametrize("make", [fsvi.MFVI, fsvi_conditional])
def test_a_compiled_training_equals_a_plain_one_and_resumes_exactly(make, tmp_path, monkeypatch):
    calls = []
    run = Compiled.__call__
    monkeypatch.setattr(Compiled, "__call__", lambda self, *args: calls.append(1) or run(self, *args))
    options = {"batch_size": 10, "progress": False, "checkpoint_interval": 0.0}
    plain, whole, halves = method(make), method(make), method(make)
    with monkeypatch.context() as patch:
        patch.setattr(step, "fast_dropout", nullcontext)  # compiled passes draw PyTorch's masks
        fsvi.fit(plain, data(), epochs=4, **options)
    assert not calls
    history = fsvi.fit(whole, data(), epochs=4, compile=BACKEND, **options)
    assert len(calls) >= 8 and history.compile_seconds > 0
    for name, value in plain.tensors().items():
        torch.testing.assert_close(whole.tensors()[name], value, rtol=1e-4, atol=1e-6)

    broken = iter([True])

    def interrupt(state):
        if state.epoch == 2 and next(broken, False):
            raise KeyboardInterrupt

    options |= {"epochs": 4, "compile": BACKEND, "checkpoint": tmp_path / "run", "callbacks": [interrupt]}
    with pytest.raises(KeyboardInterrupt):
        fsvi.fit(halves, data(), **options)
    torch._dynamo.reset()
    again = method(make)
    fsvi.fit(again, data(), resume=True, **options)
    for name, value in whole.tensors().items():
        assert torch.equal(again.tensors()[name], value), name


def test_features_of_a_compiled_network_are_those_before_the_head():
    network = method(fsvi.MAP).network.examined(data()[0][:2])
    network.module.eval()
    expected = network.with_features(data()[0])
    compile_module(network.module, BACKEND)
    for given, value in zip(network.with_features(data()[0]), expected, strict=True):
        torch.testing.assert_close(given, value)


def test_what_cannot_be_compiled_is_refused(monkeypatch):
    rank1 = fsvi.Rank1(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), fsvi.Categorical())
    with pytest.raises(fsvi.InvalidInputError, match="Rank1"):
        fsvi.fit(rank1, data(), epochs=1, compile=True, progress=False)
    with pytest.raises(fsvi.InvalidInputError, match="'indctor'"):
        fsvi.fit(method(fsvi.MAP), data(), epochs=1, compile="indctor", progress=False)
    with pytest.raises(fsvi.InvalidInputError, match="compile=3"):
        fsvi.fit(method(fsvi.MAP), data(), epochs=1, compile=3, progress=False)
    monkeypatch.setattr("fsvi.networks.compiling.has_compiler", lambda: False)
    with pytest.raises(fsvi.InvalidInputError, match="install g\\+\\+"):
        fsvi.fit(method(fsvi.MAP), data(), epochs=1, compile=True, progress=False)


def test_compilation_without_effect_is_refused():
    """Dropout that fsvi inserts is a hook, and dense members of an ensemble are trained by one vmap."""
    inserted = fsvi.MCDropout(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), fsvi.Categorical())
    ensemble = fsvi.Ensemble(lambda: fsvi.MAP(nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)), fsvi.Categorical()), 2)
    for each in (inserted, ensemble):
        with pytest.raises(fsvi.InvalidInputError, match=f"no effect on this {type(each).__name__}"):
            fsvi.fit(each, data(), epochs=1, compile=BACKEND, progress=False)


def test_a_run_that_was_refused_leaves_nothing_compiled(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(Compiled, "__call__", lambda *_: calls.append(1))
    some = method(fsvi.MAP)
    fsvi.fit(some, data(), epochs=1, checkpoint=tmp_path, progress=False)
    with pytest.raises(fsvi.InvalidInputError, match="compile"):
        fsvi.fit(some, data(), epochs=1, checkpoint=tmp_path, resume=True, compile=BACKEND, progress=False)
    fsvi.fit(some, data(), epochs=1, progress=False)
    assert not calls
