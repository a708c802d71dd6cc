import pytest
import torch

from fsvi.networks.calls import functional_call

NETWORKS = ["mlp", "tied_features", "tied_head", "batch_norm"]


@pytest.mark.parametrize("name", NETWORKS)
def test_the_network_keeps_its_own_parameters(make, name):
    net, x = make(name)
    own = {n: id(p) for n, p in net.named_parameters(remove_duplicate=False)}
    functional_call(net, {n: torch.zeros_like(p) for n, p in net.named_parameters()}, (x,), {})
    assert {n: id(p) for n, p in net.named_parameters(remove_duplicate=False)} == own


@pytest.mark.parametrize("name", NETWORKS)
def test_it_computes_what_a_network_with_those_values_would(make, name):
    net, x = make(name)
    other, _ = make(name, seed=1)
    given = functional_call(net, dict(other.named_parameters()), (x,), {})
    torch.testing.assert_close(given, other(x), rtol=0, atol=0)
