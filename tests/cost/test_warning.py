import warnings

import pytest

import fsvi
import scenarios
from fsvi.cost import warning as memory


def train(name: str = "conditional") -> fsvi.Method:
    method, data = scenarios.build(name)
    fsvi.fit(method, data, epochs=2, progress=False)
    return method


def test_fit_warns_before_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda device: 1000)
    with pytest.warns(UserWarning, match="1 kB are free") as caught:
        train()
    assert len(caught) == 1
    assert caught[0].filename == __file__


@pytest.mark.parametrize("free", [None, 10**12])
def test_fit_says_nothing_where_memory_suffices_or_is_not_known(
    monkeypatch: pytest.MonkeyPatch, free: int | None
) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda device: free)
    monkeypatch.setattr(memory, "training_cost", lambda *_: pytest.fail("small networks need no trial"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train()


def test_a_trial_that_is_needed_may_find_that_memory_suffices(monkeypatch: pytest.MonkeyPatch) -> None:
    method, (x, _) = scenarios.build("batch_norm")
    monkeypatch.setattr(memory, "free_memory", lambda device: memory._most(method, 20, x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        memory.warn_of_memory(method, 20, x)


@pytest.mark.parametrize("name", ["jvp", "learned_noise", "batch_norm"])
def test_the_trial_changes_no_bit_of_training(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    plain = train(name)
    monkeypatch.setattr(memory, "free_memory", lambda device: 0)
    with pytest.warns(UserWarning, match="memory"):
        tried = train(name)
    assert scenarios.same_bits(plain.tensors(), tried.tensors())


def test_a_trial_that_fails_is_left_to_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no kernel")

    monkeypatch.setattr(memory, "free_memory", lambda device: 0)
    monkeypatch.setattr(memory, "training_cost", fail)
    train()
