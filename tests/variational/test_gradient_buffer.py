"""The gradient gathered by hand is autograd's."""

import pytest
import torch

import fsvi
from fsvi.methods import Method


@pytest.mark.parametrize(
    "draws",
    [
        {},
        {"num_samples": 2, "divergence": fsvi.divergences.KL(num_draws=3), "num_context_sets": 2},
        {"stochastic": "last_layer"},
    ],
    ids=["one", "several", "last_layer"],
)
@pytest.mark.parametrize("linearize", ["jvp", "conditional", "exact"])
@pytest.mark.parametrize("net, shape", [("mlp", (4,)), ("norm", (2, 6, 6))])
def test_a_step_has_the_gradient_of_the_loss(net, shape, linearize, draws):
    torch.manual_seed(0)
    method = fsvi.FSVI(
        NETS[net](), fsvi.Categorical(), fsvi.contexts.Uniform(-1, 1), num_context=4, linearize=linearize, **draws
    )
    x, y = method.check_batch(torch.randn(8, *shape), torch.randint(3, (8,)))
    method.begin(x, 100)
    by_hand = _gradients(method, lambda: method.backward(x, y))
    by_autograd = _gradients(method, lambda: Method.backward(method, x, y))
    assert by_hand.keys() == by_autograd.keys() and len(by_hand) >= 2
    for name, gradient in by_hand.items():
        torch.testing.assert_close(gradient, by_autograd[name], rtol=1e-4, atol=1e-6)


def test_gradients_add_up_over_steps_until_they_are_cleared():
    torch.manual_seed(0)
    method = fsvi.FSVI(NETS["mlp"](), fsvi.Categorical(), fsvi.contexts.Uniform(-1, 1), num_context=4)
    x, y = method.check_batch(torch.randn(8, 4), torch.randint(3, (8,)))
    once = _gradients(method, lambda: method.backward(x, y))

    def twice() -> None:
        method.backward(x, y)
        torch.manual_seed(1)
        method.backward(x, y)

    for name, gradient in _gradients(method, twice).items():
        torch.testing.assert_close(gradient, 2 * once[name])


NETS = {
    "mlp": lambda: fsvi.networks.mlp(4, (8,), 3),
    "norm": lambda: torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(64, 3)
    ),
}


def _gradients(method, act):
    """The gradients that `act` leaves, from the same random numbers and the same statistics every time."""
    method.zero_grad()
    statistics = {name: buffer.clone() for name, buffer in method.named_buffers()}
    torch.manual_seed(1)
    act()
    for name, buffer in method.named_buffers():
        buffer.copy_(statistics[name])
    return {name: p.grad.clone() for name, p in method.posterior.named_parameters() if p.grad is not None and p.numel()}
