"""What FSVI, FBNN and SPG share: a prior, context points, and the weight of the divergence."""

import pytest
import torch
from torch import nn

import fsvi
import scenarios
from fsvi.errors import InvalidInputError
from fsvi.methods.function_space import FunctionSpace
from fsvi.networks.network import Network

FUNCTION_SPACE = [fsvi.FSVI, fsvi.FBNN, fsvi.SPG]


def make(cls, **settings):
    torch.manual_seed(0)
    settings = {"prior": fsvi.priors.Constant(2.0), "num_context": 5, **settings}
    return cls(scenarios.dense(), fsvi.Categorical(), scenarios.box(), **settings)


def space(**settings):
    usual = {"context": scenarios.box(), "prior": fsvi.priors.Constant(1.0), "num_context": 4, "kl_weight": None}
    made = FunctionSpace(**{**usual, **settings})
    made.bind(Network.wrap(scenarios.dense()))
    return made


def test_points_are_as_many_as_asked_for_of_the_networks_type():
    x, _ = scenarios.points()
    assert space().points(x).shape == (4, 2)
    assert space().points(x.double()).dtype == torch.float64


def test_points_of_another_shape_are_refused():
    x, _ = scenarios.points()
    with pytest.raises(InvalidInputError, match="shape"):
        space(context=fsvi.contexts.Dataset(torch.zeros(9, 3))).points(x)


def test_without_a_context_one_is_asked_for():
    with pytest.raises(InvalidInputError, match="context="):
        space(context=None).points(torch.zeros(3, 2))


def test_a_wrong_context_is_found_before_the_first_step():
    method = make(fsvi.FSVI)
    method.context = fsvi.contexts.Dataset(torch.zeros(9, 3))
    before = scenarios.copied(method)
    with pytest.raises(InvalidInputError, match="shape"):
        fsvi.fit(method, scenarios.points(), epochs=1, progress=False)
    assert scenarios.same_bits(scenarios.copied(method), before)


@pytest.mark.parametrize("cls", FUNCTION_SPACE)
def test_the_prior_can_be_replaced(cls):
    """The new prior is the one that trains, is described in files, and is the only one among the modules."""
    method, other = make(cls), fsvi.priors.Constant(9.0)
    method.prior = other
    x, _ = scenarios.points()
    assert method.prior is method.function_space.prior is not other
    assert method.prior.gaussian(x).variance().max().item() == 9.0
    assert method.config()["settings"]["prior"]["settings"]["variance"] == 9.0
    assert "prior" not in dict(method.named_children())


def test_a_replaced_prior_is_bound_to_the_network(tmp_path):
    """A prior over parameters needs the method's network; saved and loaded, the method is the same."""
    method = make(fsvi.FSVI)
    method.prior = fsvi.priors.Induced(variance=1.0, feature_variance=0.1)
    fsvi.fit(method, scenarios.points(), epochs=1, progress=False)
    method.save(tmp_path / "file")
    x, _ = scenarios.points()
    assert torch.equal(fsvi.load(tmp_path / "file").predict(x).mean, method.predict(x).mean)


@pytest.mark.parametrize(
    ("name", "value", "keyword"),
    [
        ("prior", fsvi.contexts.Batch(), "prior"),
        ("prior", nn.Linear(2, 2), "prior"),
        ("context", torch.zeros(3, 2), "context"),
        ("num_context", 0, "num_context"),
        ("kl_weight", -1.0, "kl_weight"),
        ("kl_weight", "small", "Tempered"),
    ],
)
def test_a_replaced_setting_is_checked_as_in_the_constructor(name, value, keyword):
    method = make(fsvi.FSVI)
    before = getattr(method, name)
    with pytest.raises(InvalidInputError, match=keyword):
        setattr(method, name, value)
    assert getattr(method, name) is before


def test_a_prior_that_would_be_fitted_to_labels_is_refused():
    with pytest.raises(InvalidInputError, match="regression"):
        make(fsvi.FSVI, prior=fsvi.priors.GaussianProcess(learn=True))
    method = make(fsvi.FSVI)
    method.prior = fsvi.priors.GaussianProcess(learn=True)
    with pytest.raises(InvalidInputError, match="regression"):
        fsvi.fit(method, scenarios.points(), epochs=1, progress=False)


def test_the_weight_of_the_divergence():
    assert space().weight(40) == 1 / 40
    assert space(kl_weight=fsvi.Tempered(0.5)).weight(40) == 0.5 / 40
    assert space(kl_weight=0.3).weight(40) == 0.3


def test_context_and_prior_are_copies():
    context, prior = fsvi.contexts.Uniform(), fsvi.priors.Constant(1.0)
    made = space(context=context, prior=prior)
    made.begin(torch.rand(6, 2))
    assert made.context is not context and made.prior is not prior
    assert context._bounds is None and made.context._bounds is not None
