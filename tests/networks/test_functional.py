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


def test_any_of_a_shared_parameters_names_will_do(make):
    net, x = make("tied_features")
    weight = torch.zeros(4, 4, dtype=torch.float64)
    first, second = (functional_call(net, {f"{name}.weight": weight}, (x,), {}) for name in ("first", "second"))
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert not torch.equal(first, net(x))


def test_buffers_are_replaced_too(make):
    net, x = make("batch_norm")
    net.eval()
    given = functional_call(net, {"1.running_var": torch.full((4,), 4.0, dtype=torch.float64)}, (x,), {})
    assert not torch.allclose(given, net(x))
