"""What methods with a prior over functions share: a context, a prior and the points at which they are compared."""

import pytest
import torch

import fsvi
import scenarios
from fsvi.errors import InvalidInputError
from fsvi.functions.contexts.general import context_points
from fsvi.networks.network import Network


def points(context, x, num=4):
    return context_points(Network.wrap(scenarios.dense()), context, num, x)


def test_points_are_as_many_as_asked_for_of_the_inputs_type():
    x, _ = scenarios.points()
    assert points(scenarios.box(), x).shape == (4, 2)
    assert points(scenarios.box(), x.double()).dtype == torch.float64


@pytest.mark.parametrize(("context", "said"), [(fsvi.contexts.Dataset(torch.zeros(9, 3)), "shape"), (None, "context=")])
def test_a_context_that_does_not_fit_is_refused(context, said):
    with pytest.raises(InvalidInputError, match=said):
        points(context, scenarios.points()[0])


def test_a_wrong_context_is_found_before_the_first_step():
    method = scenarios.classifier()
    method.context = fsvi.contexts.Dataset(torch.zeros(9, 3))
    before = scenarios.copied(method)
    with pytest.raises(InvalidInputError, match="shape"):
        fsvi.fit(method, scenarios.points(), epochs=1, progress=False)
    assert scenarios.same_bits(scenarios.copied(method), before)


def test_a_prior_that_would_be_fitted_to_labels_is_refused():
    with pytest.raises(InvalidInputError, match="regression"):
        scenarios.classifier(prior=fsvi.priors.GaussianProcess(learn=True))


def test_context_and_prior_are_copies():
    context, prior = fsvi.contexts.Uniform(), fsvi.priors.Constant(1.0)
    method = scenarios.classifier(context=context, prior=prior)
    fsvi.fit(method, scenarios.points(), epochs=1, progress=False)
    assert method.context is not context and method.prior is not prior
    assert context._bounds is None and method.context._bounds is not None
