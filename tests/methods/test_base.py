"""The protocol: constructors that explain themselves, and what calling a method says."""

import inspect
import re
from dataclasses import is_dataclass

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import fsvi
import scenarios
from fsvi.errors import InvalidInputError
from fsvi.methods.registry import METHODS

PUBLIC = [
    value
    for room in (fsvi, fsvi.contexts, fsvi.priors, fsvi.divergences)
    for name, value in vars(room).items()
    if inspect.isclass(value) and value.__module__.startswith(("fsvi.methods", "fsvi.functions"))
]
CONSTRUCTED = {
    cls
    for cls in PUBLIC
    if "__init__" in vars(cls) and not inspect.isabstract(cls) and not is_dataclass(cls)  # which list attributes
}


def arguments(cls):
    return list(inspect.signature(cls).parameters.values())


@pytest.mark.parametrize("cls", sorted(CONSTRUCTED, key=lambda cls: cls.__name__), ids=lambda cls: cls.__name__)
def test_every_argument_of_a_constructor_is_documented(cls):
    _, _, listed = inspect.getdoc(cls).partition("Args:")
    missing = [p.name for p in arguments(cls) if not re.search(rf"^\s+{p.name}: \S", listed, re.MULTILINE)]
    assert not missing, f"{cls.__name__} does not document {missing}"


@pytest.mark.parametrize("name", METHODS)
def test_arguments_are_few_and_named(name):
    """At most twelve; only network, likelihood and context may be given by position."""
    parameters = arguments(METHODS[name])
    assert len(parameters) <= 12
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional in (["net", "likelihood"], ["net", "likelihood", "context"])


# Batches and summaries ------------------------------------------------------------------------------------------------


def loaders(x, y):
    return {
        "inputs": [x[:8], x[8:16], x[16:]],
        "pairs": DataLoader(TensorDataset(x, y), batch_size=8),
        "single": DataLoader(TensorDataset(x), batch_size=8),
        "dataset": TensorDataset(x, y),
        "tensor": x,
        "array": x.numpy(),
    }


@pytest.mark.parametrize("kind", ["inputs", "pairs", "single", "dataset", "tensor", "array"])
def test_predictions_of_batches_are_those_of_all_inputs(kind):
    x, y = scenarios.points()
    method = scenarios.classifier().eval()
    parts = list(method.predict_batches(loaders(x, y)[kind], 6, seed=3, batch_size=8))
    assert [len(part) for part in parts] == [8, 8, 4]
    whole = method.predict(x, 6, seed=3)
    torch.testing.assert_close(fsvi.likelihoods.concatenate(parts).samples, whole.samples)


def test_batches_are_read_one_after_another():
    x, _ = scenarios.points()
    read = []

    def stream():
        for start in range(0, 20, 5):
            read.append(start)
            yield x[start : start + 5]

    predictions = scenarios.classifier().predict_batches(stream(), 3)
    assert len(next(predictions)) == 5 and read == [0]


@pytest.mark.parametrize("loader", [3, "x", {"x": 1}])
def test_what_has_no_batches_is_refused(loader):
    with pytest.raises(InvalidInputError, match="loader"):
        next(scenarios.classifier().predict_batches(loader))


@pytest.mark.parametrize("make", [scenarios.classifier, scenarios.regressor])
def test_a_summary_is_that_of_all_draws(make, monkeypatch):
    """Also where inputs are divided into parts."""
    monkeypatch.setattr("fsvi.methods.base._ROWS_AT_ONCE", 8)
    x, _ = scenarios.points()
    method = make()
    summary, whole = method.predict(x, 6, batch_size=4, summary=True), method.predict(x, 6)
    assert isinstance(summary, fsvi.likelihoods.Summary)
    torch.testing.assert_close(summary.mean, whole.mean)
    torch.testing.assert_close(summary.variance, whole.variance)
    torch.testing.assert_close(summary.score, whole.score)
    (batch,) = method.predict_batches([x], 6, summary=True)
    torch.testing.assert_close(batch.mean, whole.mean)


def test_a_summary_never_holds_the_draws_of_all_inputs(monkeypatch):
    monkeypatch.setattr("fsvi.methods.base._ROWS_AT_ONCE", 8)
    method, sizes = scenarios.classifier(), []
    predictive = method.predictive
    monkeypatch.setattr(method, "predictive", lambda f: sizes.append(f.shape[1]) or predictive(f))
    method.predict(scenarios.points()[0], 6, batch_size=4, summary=True)
    assert sizes == [8, 8, 4]
