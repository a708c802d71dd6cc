import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fsvi
import scenarios
from conftest import ZOO
from fsvi.errors import InvalidInputError
from fsvi.methods.duq import binary_cross_entropy, gradient_penalty
from fsvi_cases import stepped


def worked(momentum=0.9, penalty=0.5):
    """Features x, W_0 = (1, 0), W_1 = (0, 2), both to one dimension; centroids 1 and 3; length scale ½."""
    settings = dict(length_scale=0.5, gradient_penalty=penalty, momentum=momentum)
    method = fsvi.DUQ(nn.Sequential(nn.Linear(2, 2)).double(), fsvi.Categorical(), **settings)
    method.weight = nn.Parameter(torch.tensor([[[1.0, 0.0]], [[0.0, 2.0]]], dtype=torch.float64))
    method.counts, method.sums = torch.tensor([2.0, 4.0]).double(), torch.tensor([[2.0], [12.0]]).double()
    return method


X = torch.tensor([[1.0, 1.0], [2.0, 1.5], [0.5, 0.0]], dtype=torch.float64)
Y = torch.tensor([0, 1, 1])


def test_the_kernel_by_hand():
    """Distances² of (1, 2), (2, 3), (½, 0) from (1, 3), over 2σ² = ½."""
    method = worked()
    expected = torch.tensor([[0.0, -2.0], [-2.0, 0.0], [-0.5, -18.0]], dtype=torch.float64)
    torch.testing.assert_close(method.log_kernels(method.embed(X)), expected)


def test_the_kernel_averages_over_the_embedding():
    torch.manual_seed(0)
    method = fsvi.DUQ(scenarios.dense(), fsvi.Categorical(), length_scale=0.7).eval()
    x, _ = scenarios.points(4)
    with torch.no_grad():
        features, _ = method.network.with_features(x, {})
        for c in range(2):
            distance = (features @ method.weight[c].T - method.sums[c] / method.counts[c]).norm(dim=1)
            kernel = torch.exp(-(distance**2) / (2 * 6 * 0.7**2))
            torch.testing.assert_close(method.log_kernels(method.embed(x))[:, c].exp(), kernel)


def test_the_centroids_move_by_hand():
    """N ← .9 N + .1 n and M ← .9 M + .1 Σ W x: class 0 saw the embedding 1, class 1 saw 3 and 0."""
    method = worked(momentum=0.9)
    method(X, Y)
    torch.testing.assert_close(method.counts, torch.tensor([2.0, 4.0], dtype=torch.float64))
    method.after_step()
    torch.testing.assert_close(method.counts, torch.tensor([1.9, 3.8], dtype=torch.float64))
    torch.testing.assert_close(method.sums, torch.tensor([[1.9], [11.1]], dtype=torch.float64))
    torch.testing.assert_close(method.centroids, torch.tensor([[1.0], [11.1 / 3.8]], dtype=torch.float64))


def test_the_centroids_end_at_their_classes_means():
    method = worked(momentum=0.5)
    for _ in range(60):
        method(X, Y)
        method.after_step()
    torch.testing.assert_close(method.centroids, torch.tensor([[1.0], [1.5]], dtype=torch.float64))


def test_a_class_without_examples_keeps_its_centroid():
    method = worked(momentum=0.5)
    for _ in range(5):
        method(X[:1], Y[:1])
        method.after_step()
    torch.testing.assert_close(method.centroids[1], torch.tensor([3.0], dtype=torch.float64))


def test_the_cross_entropy_is_over_every_class():
    logs = torch.tensor([[-0.3, -2.0, -0.1], [-5.0, -0.7, -1.2]], dtype=torch.float64)
    y = torch.tensor([2, 0])
    expected = F.binary_cross_entropy(logs.exp(), F.one_hot(y, 3).double())
    torch.testing.assert_close(binary_cross_entropy(logs, y), expected)


def test_kernels_that_underflow_or_are_one_have_gradients():
    logs = torch.tensor([[-500.0, 0.0]], requires_grad=True)
    loss = binary_cross_entropy(logs, torch.tensor([0]))
    loss.backward()
    assert bool(loss.isfinite()) and logs.grad is not None and bool(logs.grad.isfinite().all())
    assert float(logs.grad[0, 0]) == -0.5


def test_the_gradient_penalty_by_hand():
    """K_c = exp(−2 (w_c x − e_c)²) has the gradient −4 (w_c x − e_c) K_c w_c: by hand at (2, 1.5) and (½, 0)."""
    method = worked(penalty=0.25)
    x = X[1:]
    first = torch.tensor([-4 * math.exp(-2), 0.0])
    second = torch.tensor([2 * math.exp(-0.5), -4 * -3 * 2 * math.exp(-18)])
    expected = 0.25 * sum((float(g.square().sum()) - 1) ** 2 for g in (first, second)) / 2
    assert float(method(x, Y[1:])["penalty"].detach()) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("slope", "penalty"), [(1.0, 0.0), (0.0, 1.0), (2.0, 9.0), (-1.0, 0.0)])
def test_the_penalty_is_two_sided(slope, penalty):
    x = torch.zeros(3, 2, requires_grad=True)
    assert float(gradient_penalty(slope * x[:, :1], x)) == pytest.approx(penalty)


@pytest.mark.parametrize("name", ["mlp", "depthwise", "batch_norm", "layer_norm", "transformer", "lstm"])
def test_the_penalty_s_own_gradient_is_right(make, name):
    """Twice differentiable through every kind of layer: against central differences along a random direction."""
    net, x = make(name, 5)
    method = fsvi.DUQ(net, fsvi.Categorical(), length_scale=1.0, gradient_penalty=1.0)
    y = torch.arange(5) % 2
    directions = [torch.randn_like(p) for p in method.parameters()]

    def moved(step):
        for p, direction in zip(method.parameters(), directions, strict=True):
            p.data.add_(step * direction)
        return method(x, y)["penalty"]

    at_rest = moved(0.0)
    gradients = torch.autograd.grad(at_rest, list(method.parameters()), allow_unused=True)
    slope = sum(float((g * d).sum()) for g, d in zip(gradients, directions, strict=True) if g is not None)
    numeric = float(moved(1e-5).detach() - moved(-2e-5).detach()) / 2e-5
    assert abs(slope) > 1e-5 and slope == pytest.approx(numeric, rel=1e-4)


def test_without_a_penalty_there_is_no_such_term():
    assert list(worked(penalty=0.0)(X, Y)) == ["nll"]


def test_it_predicts_normalised_kernels_and_is_as_certain_as_the_largest():
    method = worked()
    p = method.predict(X)
    kernels = torch.tensor([[1.0, math.exp(-2)], [math.exp(-2), 1.0], [math.exp(-0.5), math.exp(-18)]])
    kernels = kernels.double()
    torch.testing.assert_close(p.mean, kernels / kernels.sum(1, keepdim=True))
    torch.testing.assert_close(p.score, torch.tensor([-1.0, -1.0, -math.exp(-0.5)], dtype=torch.float64))
    assert not p.variance.any()


def test_the_network_s_last_layer_is_not_used():
    method = fsvi.DUQ(scenarios.dense(), fsvi.Categorical())
    x, y = scenarios.points()
    stepped(method, x, y)
    assert all(method.net.get_parameter(name).grad is None for name in method.network.head_names)
    assert method.net[0].weight.grad.abs().sum() > 0 and method.weight.grad.abs().sum() > 0


def test_far_from_the_data_it_is_uncertain():
    torch.manual_seed(0)
    x, y = scenarios.points(60)
    method = fsvi.DUQ(nn.Sequential(nn.Linear(2, 20), nn.ReLU(), nn.Linear(20, 2)), fsvi.Categorical())
    history = fsvi.fit(method, (x, y), epochs=60, batch_size=20)
    assert history.loss[-1] < 0.3 * history.loss[0]
    p = method.predict(x)
    assert float((p.labels() == y).float().mean()) > 0.9
    assert float(p.score.mean()) < -0.7
    far = 8 * torch.tensor([[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    assert float(method.predict(far).score.mean()) > -0.1


def test_an_ensemble_averages_the_kernels():
    members = [fsvi.DUQ(scenarios.dense(seed=seed), fsvi.Categorical(), length_scale=1.0).eval() for seed in range(2)]
    x, _ = scenarios.points(5)
    kernels = torch.stack([member.predict(x).kernels[0] for member in members]).mean(0)
    p = fsvi.Ensemble.of(members).predict(x)
    torch.testing.assert_close(p.score, -kernels.amax(1))


def test_tokens_need_the_penalty_switched_off():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(5, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.embed(x).mean(1))

    x, y = torch.arange(12).view(4, 3) % 5, torch.arange(4) % 2
    with pytest.raises(InvalidInputError, match="gradient_penalty=0"):
        fsvi.fit(fsvi.DUQ(Words(), fsvi.Categorical()), (x, y), epochs=1)
    fsvi.fit(fsvi.DUQ(Words(), fsvi.Categorical(), gradient_penalty=0.0), (x, y), epochs=1)


@pytest.mark.parametrize("name", sorted(ZOO.keys() - {"one_output", "resnet18"}))
def test_any_network_can_be_trained(name):
    build, shape = ZOO[name]
    torch.manual_seed(0)
    method = fsvi.DUQ(build(), fsvi.Categorical())
    x = torch.randn(6, *shape)
    history = fsvi.fit(method, (x, torch.arange(6) % 2), epochs=1)
    assert math.isfinite(history.loss[0])


def test_options_that_its_loss_does_not_have_are_refused():
    for likelihood in (fsvi.Categorical(label_smoothing=0.1), fsvi.Categorical(ignore_index=-1)):
        with pytest.raises(InvalidInputError, match="label_smoothing"):
            fsvi.DUQ(nn.Linear(2, 2), likelihood)
    with pytest.raises(InvalidInputError, match="probabilities"):
        fsvi.DUQ(nn.Linear(2, 2), fsvi.Categorical())(torch.randn(4, 2), torch.full((4, 2), 0.5))


def test_inputs_whose_distances_overflow_are_near_no_class():
    method = fsvi.DUQ(
        torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)), fsvi.Categorical()
    )
    p = method.predict(torch.full((2, 2), 1e20))
    torch.testing.assert_close(p.mean, torch.full((2, 3), 1 / 3))
    assert bool((p.score == 0).all())
