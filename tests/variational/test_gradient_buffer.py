"""The gradient gathered by hand is autograd's."""

import pytest
import torch

import fsvi
from fsvi.methods import Method
from fsvi.variational import GradientBuffer


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
@pytest.mark.parametrize("net", ["mlp", "norm", "words"])
def test_a_step_has_the_gradient_of_the_loss(net, linearize, draws):
    torch.manual_seed(0)
    x = INPUTS[net]()
    context = fsvi.contexts.Dataset(x.flip(0))
    method = fsvi.FSVI(NETS[net](), fsvi.Categorical(), context, num_context=4, linearize=linearize, **draws)
    x, y = method.check_batch(x, torch.randint(3, (8,)))
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
        method.zero_grad(set_to_none=False)
        method.backward(x, y, scale=0.5)
        torch.manual_seed(1)
        method.backward(x, y)

    for name, gradient in _gradients(method, twice).items():
        torch.testing.assert_close(gradient, 1.5 * once[name])


def test_the_memory_of_draws_is_freed_between_terms():
    posterior = fsvi.MFVI(NETS["mlp"](), fsvi.Categorical()).posterior
    with GradientBuffer(posterior) as q:
        shift = q.shift(q.noise())
        vector = next(iter(q.params(shift).values())).untyped_storage()._weak_ref()
        sum(p.sum() for p in q.params(shift).values()).backward()
        q.add_draws()
        assert torch.UntypedStorage._expired(vector)
        sum(p.sum() for p in q.params(shift).values()).backward()
    torch.testing.assert_close(posterior.mean.grad, torch.full_like(shift, 2.0))
    torch.testing.assert_close(posterior.log_std.grad, 2 * shift)


NETS = {
    "mlp": lambda: fsvi.networks.mlp(4, (8,), 3),
    "norm": lambda: torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(64, 3)
    ),
    "words": lambda: torch.nn.Sequential(
        torch.nn.Embedding(5, 3, padding_idx=0), torch.nn.Flatten(), torch.nn.Tanh(), torch.nn.Linear(6, 3)
    ),
}
INPUTS = {
    "mlp": lambda: torch.randn(8, 4),
    "norm": lambda: torch.randn(8, 2, 6, 6),
    "words": lambda: torch.randint(5, (8, 2)),
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
