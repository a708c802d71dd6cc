"""How often minibatch and context go through the network."""

import pytest
import torch

import fsvi
from fsvi import contexts
from fsvi.functions.priors import Constant, Induced
from fsvi_cases import LABELS, fsvi_on


def passes(method):
    """A list that grows by the number of inputs with every pass through the network."""
    sizes = []
    method.net.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    return sizes


ONE_PASS = [{"linearize": "conditional"}, {"stochastic": "last_layer", "num_samples": 3}]


@pytest.mark.parametrize("settings", ONE_PASS, ids=["conditional", "last layer"])
@pytest.mark.parametrize("prior", [Constant(2.0), Induced(2.0, feature_variance=0.1)], ids=["constant", "induced"])
@pytest.mark.parametrize("name", ["mlp", "no_bias", "lstm", "group_norm", "batch_norm"])
def test_one_pass_of_minibatch_and_context_gives_the_terms_and_gradients_of_two(make, name, prior, settings):
    """The same random numbers in the same order, too: those of parameters, context, function values and prior."""
    has_norm = name == "batch_norm"
    net, x = make(name)
    method = fsvi_on(net, x, context=contexts.Dataset(x.repeat(3, *[1] * (x.dim() - 1))), prior=prior, **settings)
    method.begin(x, num_data=10)
    method.train()
    sizes, results, before = passes(method), [], [buffer.clone() for buffer in method.net.buffers()]
    for joined in (True, False):
        for buffer, value in zip(method.net.buffers(), before, strict=True):
            buffer.copy_(value)
        method._is_joinable &= joined
        method.zero_grad()
        torch.manual_seed(1)
        terms = method.backward(x, LABELS)
        gradients = [p.grad for p in method.posterior.parameters() if p.numel()]
        buffers = [buffer.clone() for buffer in method.net.buffers()]
        for buffer, value in zip(method.net.buffers(), before, strict=True):
            buffer.copy_(value)
        results.append([*terms.values(), method.loss(x, LABELS), *gradients, *buffers])
    joined = [4, 4, 4, 4] if has_norm and "linearize" in settings else [8, 8]
    assert sizes == [*joined, 4, 4, 4, 4]
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize(
    ("name", "settings", "number"),
    [
        *(("dropout", settings, 2) for settings in ONE_PASS),
        ("mlp", {"linearize": "conditional", "num_samples": 2}, 3),
        ("mlp", {"linearize": "conditional", "divergence": fsvi.divergences.KL(num_draws=2)}, 3),
        ("mlp", {"linearize": "conditional", "num_context_sets": 2}, 4),
        ("mlp", {"stochastic": "last_layer", "num_context_sets": 2}, 4),
    ],
)
def test_other_networks_and_settings_need_a_pass_for_each(make, name, settings, number):
    net, x = make(name)
    method = fsvi_on(net, x, **settings)
    method.begin(x, num_data=10)
    method.train()
    sizes = passes(method)
    method.backward(x, LABELS)
    assert sizes == [4] * number


def test_settings_changed_after_training_began_are_heeded(make):
    net, x = make("mlp")
    method = fsvi_on(net, x, linearize="conditional")
    method.begin(x, num_data=10)
    sizes = passes(method)
    method.num_samples = 2
    method.backward(x, LABELS)
    assert sizes == [4, 4, 4]
