"""What methods with a prior over functions share: a context, a prior and the points at which they are compared."""

import pytest
import torch

import fsvi
import scenarios
from fsvi.errors import InvalidInputError
from fsvi.functions.contexts.general import context_points
from fsvi.networks.network import Network
from fsvi_cases import LABELS, loss_of


def points(context, x, num=4):
    return context_points(Network.wrap(scenarios.dense()), context, num, x)


def test_points_are_as_many_as_asked_for_of_the_inputs_type():
    x, _ = scenarios.points()
    assert points(scenarios.box(), x).shape == (4, 2)
    assert points(scenarios.box(), x.double()).dtype == torch.float64


def test_a_prior_that_would_be_fitted_to_labels_is_refused():
    with pytest.raises(InvalidInputError, match="regression"):
        scenarios.classifier(prior=fsvi.priors.GaussianProcess(learn=True))


@pytest.mark.parametrize("method_class", [fsvi.FSEB, fsvi.GFSVI, fsvi.SPG])
def test_batch_norm_follows_the_data_and_not_the_context(make, method_class):
    """The context is evaluated with running statistics and does not change them."""
    net, x = make("batch_norm")
    method = method_class(net, fsvi.Categorical(), fsvi.contexts.Dataset(x + 5), num_context=4)
    plain = fsvi.MAP(net, fsvi.Categorical())
    for each in (method, plain):
        each.train()
        loss_of(each, x, LABELS)
    for own, other in zip(method.net.buffers(), plain.net.buffers(), strict=True):
        torch.testing.assert_close(own, other)
    assert method.net.training
