import math

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import nn
from torch.func import functional_call, jacrev

from fsvi.networks import Network
from fsvi.posteriors.gauss_newton import Diagonal, Full, GaussNewton, Kronecker
from fsvi.posteriors.per_example import record, weight_layers
from fsvi_cases import unit_draws

OUTPUTS = 2


def draw_roots(num, columns=3):
    """S for every input, all different, (n, outputs, columns)."""
    return torch.randn(num, OUTPUTS, columns, dtype=torch.float64)


def fitted(net, x, roots, kind, precision=1.0, among=None, batch=2):
    """The Gauss–Newton matrix of `kind`, added up from batches."""
    means = {name: p.detach() for name, p in net.named_parameters()}
    posterior = GaussNewton(weight_layers(net, among), kind)
    for part, root in zip(x.split(batch), roots.split(batch), strict=True):
        outputs, recording = record(Network(net), means, posterior.layers, part)
        posterior.add(recording, recording.gradients(outputs, root.movedim(-1, 0)))
    posterior.decompose(means)
    posterior.precision.fill_(precision)
    return posterior


# The oracle: an explicit Jacobian -------------------------------------------------------------------------------------


def jacobian(net, x, layers):
    """∂f(xₙ)/∂θ, (n, outputs, P), the parameters in the order of the layers' matrices."""
    means = {name: p.detach() for name, p in net.named_parameters()}
    moving = {name: means[name] for layer in layers for name in layer.names}
    blocks = jacrev(lambda moved: functional_call(net, {**means, **moved}, (x,)))(moving)
    rows = [{name: blocks[name].flatten(0, 1)[i] for name in blocks} for i in range(len(x) * OUTPUTS)]
    flat = [torch.cat([layer.matrix(row).flatten() for layer in layers]) for row in rows]
    return torch.stack(flat).reshape(len(x), OUTPUTS, -1)


def gauss_newton(jacobian, roots):
    """Σₙ Jₙᵀ Sₙ Sₙᵀ Jₙ"""
    return torch.einsum("nop,nom,nqm,nqr->pr", jacobian, roots, roots, jacobian)


def basis(block):
    """U, (P, P)."""
    if isinstance(block, Full):
        return block.basis
    if isinstance(block, Kronecker):
        pairs = zip(block.output_basis, block.input_basis, strict=True)
        return torch.block_diag(*(torch.kron(outputs, inputs) for outputs, inputs in pairs))
    return torch.eye(block.eigenvalues.numel(), dtype=torch.float64)


def dense(posterior):
    """U diag(λ) Uᵀ of all layers."""
    return torch.block_diag(*((basis(b) * b.eigenvalues.flatten()) @ basis(b).T for b in posterior.blocks))


def parameters(posterior):
    """Draws of θ − θ* from the unit vectors of noise, (P, P)."""
    draws = unit_draws(posterior, lambda num: posterior.draw(num, None, torch.zeros(0, dtype=torch.float64)))
    return torch.vmap(lambda shift: torch.cat([layer.matrix(shift).flatten() for layer in posterior.layers]))(draws)


def blocks_of(matrix, layers):
    """The matrix without what lies between layers, or between the groups of one."""
    shapes = [layer.matrix_shape for layer in layers]
    sizes = [outputs * inputs for groups, outputs, inputs in shapes for _ in range(groups)]
    return matrix * torch.block_diag(*(torch.ones(size, size, dtype=matrix.dtype) for size in sizes))


# The matrix -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [2, 5])
def test_full_is_the_last_layers_gauss_newton_matrix(make, batch):
    net, x = make("mlp", 5)
    roots = draw_roots(5)
    posterior = fitted(net, x, roots, Full, among=[net[2]], batch=batch)
    torch.testing.assert_close(dense(posterior), gauss_newton(jacobian(net, x, posterior.layers), roots))


@pytest.mark.parametrize("name", ["mlp", "tied_features", "layer_norm", "depthwise", "batch_norm"])
def test_diagonal_is_the_diagonal_of_the_gauss_newton_matrix(make, name):
    net, x = make(name, 3)
    net.eval()
    roots = draw_roots(3)
    posterior = fitted(net, x, roots, Diagonal)
    expected = gauss_newton(jacobian(net, x, posterior.layers), roots).diagonal()
    torch.testing.assert_close(posterior.eigenvalues, expected)


def test_kronecker_is_exact_for_one_linear_layer_where_the_fisher_information_is_the_same_everywhere(make):
    net, x = make("linear", 5)
    roots = draw_roots(1).expand(5, -1, -1)
    posterior = fitted(net, x, roots, Kronecker)
    torch.testing.assert_close(dense(posterior), gauss_newton(jacobian(net, x, posterior.layers), roots))


@pytest.mark.parametrize("groups", [1, 2])
def test_kronecker_is_exact_layer_by_layer_and_group_by_group_for_one_example_at_one_position(groups):
    torch.manual_seed(0)
    layers = [nn.Conv2d(4, 6, (2, 3), groups=groups), nn.Tanh(), nn.Flatten(), nn.Linear(6, 3), nn.Tanh()]
    net = nn.Sequential(*layers, nn.Linear(3, OUTPUTS)).double()
    x, roots = torch.randn(1, 4, 2, 3, dtype=torch.float64), draw_roots(1)
    posterior = fitted(net, x, roots, Kronecker)
    expected = gauss_newton(jacobian(net, x, posterior.layers), roots)
    torch.testing.assert_close(dense(posterior), blocks_of(expected, posterior.layers))


def test_kronecker_averages_inputs_over_positions_and_adds_up_gradients(make):
    net, x = make("depthwise", 3)
    roots = draw_roots(3)
    posterior = fitted(net, x, roots, Kronecker)
    means = dict(net.named_parameters())
    outputs, recording = record(Network(net), means, posterior.layers, x)
    gradients = recording.gradients(outputs, roots.movedim(-1, 0))
    layer, patches, positions = next(recording.pairs(gradients, torch.float64))
    assert layer.weight == "0.weight" and patches.shape == (3, 1, 16, 18)
    a, g = layer.with_one(patches).reshape(-1, 19), positions.reshape(-1, 4)
    torch.testing.assert_close(dense(posterior)[:76, :76], torch.kron(g.T @ g, a.T @ a / len(a)))


# The Gaussian ---------------------------------------------------------------------------------------------------------

KINDS = pytest.mark.parametrize("kind", [Full, Kronecker, Diagonal])


def small(make, kind, precision=0.7):
    """A posterior over the last layer, or over several: with one position, with many, and in groups."""
    net, x = make("mlp" if kind is Full else "depthwise", 4)
    among = [net[2]] if kind is Full else None
    return net, x, fitted(net, x, draw_roots(4), kind, precision, among)


@KINDS
def test_draws_have_the_inverse_of_the_precision_as_covariance(make, kind):
    _, _, posterior = small(make, kind)
    root, matrix = parameters(posterior), dense(posterior)
    eye = torch.eye(len(matrix), dtype=torch.float64)
    torch.testing.assert_close(root.T @ root, torch.linalg.inv(matrix + 0.7 * eye))


@KINDS
def test_the_evidence_is_the_log_of_laplaces_integral(make, kind):
    net, _, posterior = small(make, kind)
    posterior.log_likelihood.fill_(-3.0)
    means = dict(net.named_parameters())
    mode = torch.cat([layer.matrix(means).flatten() for layer in posterior.layers]).detach()
    precision = dense(posterior) + 2.0 * torch.eye(len(mode), dtype=torch.float64)
    prior = torch.distributions.Normal(0, torch.tensor(2.0, dtype=torch.float64).rsqrt()).log_prob(mode).sum()
    volume = 0.5 * len(mode) * math.log(2 * math.pi) - 0.5 * torch.logdet(precision)
    torch.testing.assert_close(posterior.log_evidence(2.0), -3.0 + prior + volume)


@KINDS
def test_the_best_precision_maximises_the_evidence(make, kind):
    _, _, posterior = small(make, kind)
    found = minimize_scalar(lambda log: -float(posterior.log_evidence(math.exp(log))), bracket=(-5, 5))
    assert posterior.best_precision() == pytest.approx(math.exp(found.x), rel=1e-4)
