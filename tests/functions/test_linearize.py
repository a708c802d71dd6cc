import copy
import math

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev, jvp
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from fsvi.functions.linearize import LINEARIZERS
from fsvi.networks.network import Network
from fsvi.networks.parameters import deterministic_names
from fsvi.posteriors.mean_field import MeanField

PLAIN = ["mlp", "no_bias", "one_output", "dropout", "tied_features", "head_first"]
FORWARD_MODE = [
    "transformer",
    "transformer_dropout",
    "lstm",
    "gru",
    "depthwise",
    "group_norm",
    "layer_norm",
    "batch_norm",
]
EVERY = [*PLAIN, *FORWARD_MODE]


def posterior(net, x, only_head=False):
    """A mean-field posterior with random standard deviations, and a draw."""
    split = Network(net).examined(x)
    skip = deterministic_names(net)
    names = [name for name, _ in net.named_parameters() if name not in skip]
    q = MeanField(net, dict.fromkeys(split.head_names if only_head else names, 0.1))
    with torch.no_grad():
        q.log_std.copy_(math.log(0.1) + 0.5 * torch.randn_like(q.log_std))
    return split, q, q.draw()


def outputs_at(net, params, x):
    """f(X; θ) in eval mode, on a copy: torch's own call can leave its tensors in a network with shared modules."""
    return functional_call(copy.deepcopy(net).eval(), params, (x,))


def jacobian(net, params, names, x):
    """∂f/∂θ for the named parameters, (K·Q, P), by reverse mode, in eval mode."""
    blocks = jacrev(lambda moving: outputs_at(net, {**params, **moving}, x).reshape(-1))({n: params[n] for n in names})
    return torch.cat([block.flatten(1) for block in blocks.values()], dim=1)


def flat(tensors, names):
    return torch.cat([tensors[name].reshape(-1) for name in names])


def joint_covariance(values):
    """Of (K, Q) values in point-by-point order, outputs independent."""
    points, outputs = values.mean.shape
    eye = torch.eye(outputs, dtype=torch.float64)
    return torch.einsum("qij,qr->iqjr", values.covariance, eye).reshape(points * outputs, -1)


@pytest.mark.parametrize("name", PLAIN)
def test_jvp_equals_the_explicit_jacobian(make, name):
    """Mean f(X; μ) + J_α(α − μ_α), covariance J_β S_β J_βᵀ."""
    net, x = make(name)
    split, q, draw = posterior(net, x)
    means, stds, shifts = dict(net.named_parameters()), q.stds(), draw.shift
    features = [n for n in stds if n not in split.head_names]
    expected_mean = outputs_at(net, means, x).reshape(-1)
    expected_mean = expected_mean + jacobian(net, means, features, x) @ flat(shifts, features)
    head = jacobian(net, means, split.head_names, x)
    values = LINEARIZERS["jvp"](split, q, x, draw)
    torch.testing.assert_close(values.mean.reshape(-1), expected_mean, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(
        joint_covariance(values), head * flat(stds, split.head_names).square() @ head.T, rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("name", PLAIN)
def test_conditional_has_the_features_of_the_real_draw(make, name):
    net, x = make(name)
    split, q, draw = posterior(net, x)
    drawn = {n: p if n in split.head_names else p + draw.shift[n] for n, p in net.named_parameters()}
    head = jacobian(net, drawn, split.head_names, x)
    values = LINEARIZERS["conditional"](split, q, x, draw)
    torch.testing.assert_close(values.mean, outputs_at(net, drawn, x))
    expected = head * flat(q.stds(), split.head_names).square() @ head.T
    torch.testing.assert_close(joint_covariance(values), expected)


@pytest.mark.parametrize("name", [*EVERY, "tied_head"])
def test_exact_is_the_whole_jacobian(make, name):
    """f̃(X) ~ N(f(X; μ), J S Jᵀ), all outputs jointly."""
    net, x = make(name, 3)
    split, q, _ = posterior(net, x)
    whole = jacobian(net, dict(net.named_parameters()), list(q.stds()), x)
    values = LINEARIZERS["exact"](split, q, x, None)
    torch.testing.assert_close(values.mean.reshape(3, -1), outputs_at(net, {}, x))
    torch.testing.assert_close(values.covariance[0], whole * flat(q.stds(), q.stds()).square() @ whole.T)


@pytest.mark.parametrize("name", ["mlp", "no_bias", "dropout", "batch_norm"])
def test_with_a_stochastic_last_layer_alone_all_three_are_one_closed_form(make, name):
    net, x = make(name)
    split, q, _ = posterior(net, x, only_head=True)
    head = jacobian(net, dict(net.named_parameters()), split.head_names, x)
    expected = head * flat(q.stds(), split.head_names).square() @ head.T
    for linearize in LINEARIZERS.values():
        values = linearize(split, q, x, None)
        torch.testing.assert_close(joint_covariance(values), expected)
        torch.testing.assert_close(values.mean, outputs_at(net, {}, x))


@pytest.mark.parametrize(
    ("name", "training"), [*((name, mode) for name in EVERY for mode in (True, False)), ("residual", True)]
)
def test_jvp_equals_central_differences(make, name, training):
    """The layers for which forward mode needs a cure, in both modes of the network."""
    net, x = make(name, 2)
    split, q, draw = posterior(net, x)
    net.train(training)
    values = LINEARIZERS["jvp"](split, q, x, draw)
    assert net.training == training
    net.eval()
    step = 1e-7 / float(torch.cat([t.flatten() for t in draw.shift.values()]).square().mean().sqrt())
    own = dict(net.named_parameters())
    moved = [{n: own[n] + sign * step * t for n, t in draw.shift.items()} for sign in (1, -1)]
    ends = [split.with_features(x, tensors)[0] for tensors in moved]
    features, _ = split.with_features(x)
    change = (ends[0] - ends[1]) / (2 * step)
    weight, *bias = (own[n] for n in split.head_names)
    torch.testing.assert_close(values.factor[:, : features.shape[1]], features)
    torch.testing.assert_close(
        values.mean,
        F.linear(features + change, weight, *bias),
        rtol=1e-5,
        atol=1e-5 * float(change.detach().abs().max()),
    )
    assert change.abs().max() > 1e-3


@pytest.mark.parametrize(
    ("name", "linearize"), [*((n, "jvp") for n in EVERY), ("mlp", "conditional"), ("lstm", "exact"), ("mlp", "exact")]
)
def test_reverse_mode_through_the_linearisation(make, name, linearize):
    """The gradient in means, `log_std` and points, in a random direction, against central differences."""
    net, x = make(name, 2)
    split, q, _ = posterior(net, x)
    noise = q.noise()

    def value():
        g = LINEARIZERS[linearize](split, q, x, q.at(noise))
        return g.mean.square().sum() + g.covariance.sin().sum()

    value().backward()
    for parameters in ([q.log_std], list(net.parameters())):
        directions = [torch.randn_like(p) for p in parameters]
        ends = []
        for step in (1e-5, -2e-5):
            with torch.no_grad():
                for p, direction in zip(parameters, directions, strict=True):
                    p.add_(step * direction)
                ends.append(value())
        expected = (ends[0] - ends[1]) / 2e-5
        found = sum((p.grad * d).sum() for p, d in zip(parameters, directions, strict=True) if p.grad is not None)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)
        with torch.no_grad():
            for p, direction in zip(parameters, directions, strict=True):
                p.add_(1e-5 * direction)


@pytest.mark.parametrize("linearize", LINEARIZERS)
def test_running_statistics_are_read_and_never_written(make, linearize):
    """BatchNorm in train mode: frozen statistics, the same values as in eval mode, buffers bit for bit as before."""
    net, x = make("batch_norm")
    net(3 + 2 * torch.randn(50, *x.shape[1:], dtype=torch.float64))
    split, q, draw = posterior(net, x)
    before = {name: buffer.clone() for name, buffer in net.named_buffers()}
    values = [LINEARIZERS[linearize](split, q, x, draw) for net in (net.train(), net.eval())]
    assert torch.equal(values[0].mean, values[1].mean)
    assert all(torch.equal(before[name], buffer) for name, buffer in net.named_buffers())
    assert deterministic_names(net).isdisjoint(q.stds()) and deterministic_names(net) == {"1.weight", "1.bias"}


@pytest.mark.parametrize("linearize", LINEARIZERS)
def test_a_train_mode_pass_before_backward_does_not_change_the_gradient(make, linearize):
    """BatchNorm's backward reads the running statistics, which a train-mode pass overwrites in place."""
    net, x = make("batch_norm")
    split, q, _ = posterior(net, x)
    noise = q.noise()

    def gradients(disturb):
        for name, buffer in net.named_buffers():
            buffer.fill_(1.5 if "var" in name else 0)
        g = LINEARIZERS[linearize](split, q, x, q.at(noise))
        if disturb:
            net.train()(5 * torch.randn(20, *x.shape[1:], dtype=torch.float64))
        value = g.mean.square().sum() + g.covariance.sum()
        return torch.autograd.grad(value, [*net.parameters(), q.log_std], allow_unused=True)

    for undisturbed, disturbed in zip(gradients(False), gradients(True), strict=True):
        assert (undisturbed is None and disturbed is None) or torch.equal(undisturbed, disturbed)


# Layers whose fused kernels torch cannot differentiate twice ----------------------------------------------------------


def weight_normed():
    layer = parametrizations.weight_norm(nn.Linear(3, 5))
    return nn.Sequential(layer, nn.Tanh(), nn.Linear(5, 2)).double(), torch.randn(4, 3, dtype=torch.float64)


def by_hand(params, x):
    """Features and outputs of the same network in elementary operations."""
    scale, direction = (params[f"0.parametrizations.weight.original{i}"] for i in range(2))
    weight = scale * direction / direction.square().sum(1, keepdim=True).sqrt()
    features = torch.tanh(x @ weight.T + params["0.bias"])
    return features, features @ params["2.weight"].T + params["2.bias"]


def jvp_by_hand(q, x, noise):
    params, tangents = q.means(), q.at(noise).shift
    moving = {name: value for name, value in tangents.items() if not name.startswith("2.")}
    start = {name: params[name] for name in moving}
    features, change = jvp(lambda moved: by_hand({**params, **moved}, x)[0], (start,), (moving,))
    mean = (features + change) @ params["2.weight"].T + params["2.bias"]
    weight, bias = ((2 * log_std).exp() for log_std in list(q.layout.views(q.log_std).values())[-2:])
    return mean, (features * weight[:, None]) @ features.T + bias[:, None, None]


def exact_by_hand(q, x):
    def outputs(means):
        return by_hand(means, x)[1].reshape(-1)

    blocks = jacrev(outputs)(q.means())
    jacobian = torch.cat([block.flatten(1) for block in blocks.values()], dim=1)
    return outputs(q.means())[:, None], ((jacobian * (2 * q.log_std).exp()) @ jacobian.T)[None]


@pytest.mark.parametrize("linearize", ["jvp", "exact"])
def test_weight_norm_has_the_gradient_of_elementary_operations(linearize):
    net, x = weight_normed()
    split, q, _ = posterior(net, x)
    noise = q.noise()
    values = LINEARIZERS[linearize](split, q, x, q.at(noise))
    expected = jvp_by_hand(q, x, noise) if linearize == "jvp" else exact_by_hand(q, x)
    torch.testing.assert_close((values.mean, values.covariance), expected)
    torch.testing.assert_close(gradients(q, values.mean, values.covariance), gradients(q, *expected))


def gradients(q, mean, covariance):
    value = mean.square().sum() + covariance.square().sum()
    return torch.autograd.grad(value, [*q.means().values(), q.log_std])


@pytest.mark.parametrize("linearize", ["jvp", "exact"])
def test_hardsigmoid_has_the_gradient_of_a_clamped_line(linearize):
    class Clamped(nn.Module):
        def forward(self, x):
            return (x / 6 + 0.5).clamp(0, 1)

    found = []
    for activation in (nn.Hardsigmoid(), Clamped()):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 5), activation, nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).double()
        x = 3 * torch.randn(6, 3, dtype=torch.float64)
        split, q, draw = posterior(net, x)
        values = LINEARIZERS[linearize](split, q, x, draw)
        found.append((values.mean, *gradients(q, values.mean, values.covariance)))
    torch.testing.assert_close(*found)
