import re
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fsvi
from fsvi.errors import FSVIError, InvalidInputError, SingularCovarianceError
from scenarios import box, classifier, copied, curve, dense, points, regressor, same_bits

contexts, priors = fsvi.contexts, fsvi.priors
X, Y = points()
FAST_FIT = {"epochs": 2, "batch_size": 10}


def spoiled(x, value):
    """`x` with one value replaced, in its last row."""
    x = x.clone()
    x.view(-1)[-1] = value
    return x


def assert_one_sentence(message):
    assert message[-1] in ".?" and "\n" not in message
    assert not re.search(r"[.?!] [A-Z]", message)


@contextmanager
def refused(message, kind=InvalidInputError):
    """An error of this kind must come, its message one sentence that matches."""
    with pytest.raises(kind, match=message) as caught:
        yield
    assert isinstance(caught.value, FSVIError)
    assert_one_sentence(str(caught.value))


# Data


CLASSIFICATION = {
    "nan input": ((spoiled(X, np.nan), Y), r"NaN.*torch\.float32"),
    "too large for the network": ((spoiled(X.double(), 1e300), Y), r"NaN.*torch\.float32"),
    "label too large": ((X, Y + 1), r"1\.\.2.*0\.\.1"),
    "float labels": ((X, Y.float()), r"torch\.float32"),
    "one-hot labels": ((X, nn.functional.one_hot(Y)), r"\(20, 2\)"),
    "labels as words": ((X, np.array(["a"] * 20)), r"numpy\.str_"),
    "fewer labels": ((X, Y[:5]), r"20 inputs.*\(5,\)"),
    "more features": ((torch.randn(20, 3), Y), r"accept.*\(3,\)"),
    "one dimension": ((X[:, 0], Y), r"\(20,\).*batch"),
    "whole numbers": ((X.long(), Y), "accept.*Long and Float"),
    "ragged": (([[1.0, 2.0], [3.0]], [0, 1]), "x .*sequence of length 2"),
    "nothing": ((X[:0], Y[:0]), r"\(0, 2\).*empty"),
    "nan in a loader": (DataLoader(TensorDataset(spoiled(X, np.nan), Y), batch_size=4), "inputs.*NaN"),
    "labels in a loader": (DataLoader(TensorDataset(X, Y + 1), batch_size=4), r"1\.\.2"),
}
REGRESSION = {
    "only nan targets": ((X, torch.full((20, 1), torch.nan)), "no target is present"),
    "infinite target": ((X, spoiled(curve()[1], -np.inf)), "targets.*infinite"),
    "more targets": ((X, torch.randn(20, 3)), r"\(20, 3\).*\(n, 1\)"),
}


@pytest.mark.parametrize(
    ("make", "data", "message"),
    [
        *(pytest.param(classifier, *case, id=name) for name, case in CLASSIFICATION.items()),
        *(pytest.param(regressor, *case, id=name) for name, case in REGRESSION.items()),
    ],
)
def test_data_that_cannot_be_learned_from(make, data, message):
    method = make()
    before = copied(method)
    with refused(message):
        fsvi.fit(method, data, **FAST_FIT)
    assert same_bits(copied(method), before)


def test_one_class_is_warned_of_once():
    for data in ((X, 0 * Y + 1), DataLoader(TensorDataset(X, 0 * Y + 1), batch_size=5)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fsvi.fit(classifier(), data, epochs=3, batch_size=5, validation=(X, 0 * Y))
        ours = [warning for warning in caught if "labels" in str(warning.message)]
        assert len(ours) == 1
        assert "20 labels" in str(ours[0].message)
        assert ours[0].filename == __file__


# Predictions


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (spoiled(X, np.nan), "inputs.*NaN"),
        (torch.randn(4, 3), r"accept.*\(3,\)"),
        (X[0], r"\(2,\).*batch"),
        (X[:0], "empty"),
        ("words", "^x .*tensor"),
    ],
    ids=["nan", "shape", "one input", "nothing", "words"],
)
def test_inputs_that_cannot_be_predicted(x, message):
    for method in (classifier(), fsvi.MAP(dense(), fsvi.Categorical())):
        with refused(message):
            method.predict(x)
    with refused(message):
        classifier().function_kl(x)


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_context": 0}, "num_context=0 must be a whole number of at least 1"),
        ({"num_context": 2.5}, r"num_context=2\.5 must be a whole number"),
        ({"kl_weight": -1}, "kl_weight=-1 must be"),
        ({"stochastic": "last-layer"}, "stochastic='last-layer' must be one of .* did you mean 'last_layer'?"),
        ({"linearize": "JVP"}, "linearize='JVP' must be one of .* did you mean 'jvp'?"),
        ({"context": X}, r"context is a Tensor, not a context such as fsvi\.contexts\.Dataset\(tensor\)"),
        ({"context": contexts.Batch}, "context is the class Batch, not a context"),
        ({"context": contexts.Uniform([0, 0, 0], [1, 1, 1])}, r"the network does not accept inputs of shape \(3,\)"),
    ],
)
def test_a_setting_that_cannot_be_used(settings, message):
    with refused(message):
        classifier(**settings)


# Contexts, found when training starts


@pytest.mark.parametrize(
    ("context", "message"),
    [
        (None, "context="),
        (contexts.Monochrome(), r"Monochrome.*\(20, 2\)"),
        (contexts.Corrupted(), "Corrupted.*images"),
        (contexts.Mixture([box(), contexts.Dataset(torch.randn(9, 3))], [0.5, 0.5]), r"\(2,\) and \(3,\)"),
    ],
    ids=["none", "monochrome", "corrupted", "mixture"],
)
def test_a_context_that_does_not_fit_the_data(context, message):
    method = classifier(context=context)
    before = copied(method)
    with refused(message):
        fsvi.fit(method, (X, Y), **FAST_FIT)
    assert same_bits(copied(method), before)


# Singular covariances


@pytest.mark.parametrize(
    "settings",
    [{}, {"linearize": "jvp"}, {"prior": priors.Induced()}],
    ids=["conditional", "jvp", "induced"],
)
def test_a_singular_covariance_names_the_settings_to_change(settings):
    method = classifier(divergence=fsvi.divergences.KL(nugget=0.0), num_context=30, **settings)
    before = copied(method)
    with refused("30×30.*`nugget`", SingularCovarianceError):
        fsvi.fit(method, (X, Y), **FAST_FIT)
    assert same_bits(copied(method), before)


# The checks themselves


@pytest.mark.parametrize("name", ["map", "fsvi"])
def test_a_network_with_nothing_to_learn_is_refused(name):
    x, y = points()
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)).requires_grad_(False)
    with pytest.raises(fsvi.errors.FSVIError, match="frozen"):
        fsvi.fit(fsvi.make_method(name, net, fsvi.Categorical()), (x, y), epochs=1)
