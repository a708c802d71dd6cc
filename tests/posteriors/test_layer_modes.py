import math

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev
from torch.nn import functional as F

from fsvi.posteriors.layer_modes import LocalReparametrization
from fsvi.posteriors.mean_field import MeanField

NUM = 4000


def posterior(net, *deterministic):
    q = MeanField(net, {name: 1.0 for name, _ in net.named_parameters() if name not in deterministic})
    with torch.no_grad():
        q.log_std.uniform_(-3, -1)
    return q


def weight_draw(q, net, x):
    return functional_call(net, q.draw().params, (x,))


def local_draw(q, net, x):
    params = q.draw().params
    with LocalReparametrization(q, params):
        return functional_call(net, params, (x,))


LAYERS = {
    "linear": (lambda: nn.Linear(3, 2), (3,)),
    "no_bias": (lambda: nn.Linear(3, 2, bias=False), (3,)),
    "positions": (lambda: nn.Linear(3, 2), (4, 3)),
    "conv1d": (lambda: nn.Conv1d(2, 3, 2), (2, 5)),
    "conv2d": (lambda: nn.Conv2d(2, 4, 3, stride=2, padding=1), (2, 5, 5)),
    "grouped": (lambda: nn.Conv2d(2, 4, 2, groups=2, dilation=2), (2, 4, 4)),
    "reflecting": (lambda: nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect"), (1, 3, 3)),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("fixed_bias", [False, True])
@torch.no_grad()
def test_outputs_have_the_mean_and_variance_of_the_closed_form(name, fixed_bias):
    """A layer is linear in its parameters: J·mean and J²·std², J being its Jacobian; in units of sampling errors."""
    make, shape = LAYERS[name]
    net = make().double()
    q = posterior(net, *(["bias"] if fixed_bias else []))
    x = torch.randn(1, *shape, dtype=torch.float64)
    blocks = jacrev(lambda means: functional_call(net, means, (x,)))(q.means())
    stds = q.stds()
    variance = sum(
        (block[0] * stds[name]).square().flatten(len(block.shape) - stds[name].dim() - 1).sum(-1)
        for name, block in blocks.items()
    )
    draws = local_draw(q, net, x.expand(NUM, *shape))
    mean_error = (draws.mean(0) - net(x)[0]) / (variance / NUM).sqrt()
    variance_error = (draws.var(0) / variance - 1) / math.sqrt(2 / NUM)
    for error in (mean_error, variance_error):
        assert error.abs().max() < 5
        assert error.abs().max() > 1e-3, "the draws are random"


@torch.no_grad()
def test_outputs_of_one_example_have_the_covariance_of_weight_draws_and_examples_are_independent():
    net = nn.Linear(3, 2).double()
    q = posterior(net)
    x = torch.randn(2, 3, dtype=torch.float64)
    num = 500
    local, weights = (torch.stack([draw(q, net, x) for _ in range(num)]) for draw in (local_draw, weight_draw))
    correlations = [draws.flatten(1).T.corrcoef() for draws in (local, weights)]
    limit = 5 / math.sqrt(num)
    assert (correlations[0] - torch.eye(4)).abs().max() < limit
    assert correlations[1][0, 2].abs() > limit, "which one draw of the weights for all examples are not"
    assert correlations[1][0, 1].abs() < limit, "two outputs of one example are independent either way"


def gradients(draw, q, net, x, y):
    loss = F.cross_entropy(draw(q, net, x), y)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, [*q.means().values(), q.log_std])])


def test_gradients_have_the_same_mean_and_less_variance():
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    q = posterior(net)
    x, y = torch.randn(32, 3), torch.randint(2, (32,))
    num = 400
    local, weights = (
        torch.stack([gradients(draw, q, net, x, y) for _ in range(num)]) for draw in (local_draw, weight_draw)
    )
    assert local.var(0).sum() < 0.3 * weights.var(0).sum()
    error = (local.mean(0) - weights.mean(0)) / ((local.var(0) + weights.var(0)) / num).sqrt()
    assert error.abs().max() < 5


def test_layers_of_other_kinds_use_the_draw_of_their_weights():
    net = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    q = posterior(net)
    with torch.no_grad():
        q.log_std.copy_(q.layout.fill({name: -30.0 if name.startswith("0") else 0.0 for name in q.layout.names}))
    params = q.draw().params
    x = torch.randn(4, 3)
    with LocalReparametrization(q, params):
        local = functional_call(net, params, (x,))
    torch.testing.assert_close(local, functional_call(net, params, (x,)))
    assert not torch.allclose(local, net(x))
