import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import MultivariateNormal, Normal, kl_divergence
from torch.utils._python_dispatch import TorchDispatchMode

from fsvi.errors import SingularCovarianceError
from fsvi.functions.divergences import diagonal_kl, gaussian_kl
from fsvi.functions.gaussian import FunctionGaussian, cholesky, log_determinant

NUGGET = 1e-2


def gaussian(points, rank, outputs, shared=False, diagonal=0.0, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    mean = torch.randn(points, outputs, generator=g, dtype=dtype)
    factor = torch.randn(points, rank, generator=g, dtype=dtype)
    weight = torch.rand(1 if shared else outputs, rank, generator=g, dtype=dtype) + 0.1
    return FunctionGaussian(mean, factor, weight, diagonal)


def dense(g, nugget):
    """The same by definition: Σₖ = Σᵣ w[k, r] uᵣ uᵣᵀ + (d + nugget)·I, one MultivariateNormal an output."""
    points, outputs = g.mean.shape
    covariance = torch.einsum("qr,ir,jr->qij", g.weight.expand(outputs, -1), g.factor, g.factor)
    return MultivariateNormal(g.mean.T, covariance + (g.diagonal + nugget) * torch.eye(points, dtype=torch.float64))


SHAPES = dict(
    points=st.integers(1, 7),
    ranks=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    outputs=st.sampled_from([1, 2, 3, 9]),
    shared=st.tuples(st.booleans(), st.booleans()),
    diagonals=st.tuples(st.sampled_from([0.0, 0.5]), st.sampled_from([0.0, 0.5])),
    seed=st.integers(0, 10_000),
)


def draw_pair(points, ranks, outputs, shared, diagonals, seed):
    return [gaussian(points, ranks[i], outputs, shared[i], diagonals[i], 2 * seed + i) for i in range(2)]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(**SHAPES)
def test_the_kl_and_its_gradient_are_those_of_torch_distributions(**shapes):
    """Ranks below and above K, few outputs and more outputs than points, weights shared over outputs or not."""
    q, p = draw_pair(**shapes)
    inputs = [t.requires_grad_() for t in (q.mean, q.factor, q.weight)]
    found, expected = gaussian_kl(q, p, NUGGET), kl_divergence(dense(q, NUGGET), dense(p, NUGGET)).sum()
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)
    gradients = (torch.autograd.grad(each, inputs) for each in (found, expected))
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-8)


class LargestTensor(TorchDispatchMode):
    """Remembers the largest number of entries of a tensor that an operator returned."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        returned = func(*args, **(kwargs or {}))
        for each in returned if isinstance(returned, (tuple, list)) else (returned,):
            self.size = max(self.size, each.numel() if isinstance(each, torch.Tensor) else 0)
        return returned


@pytest.mark.parametrize("shared", [True, False])
def test_memory_does_not_grow_as_outputs_times_points_times_rank(shared):
    points, rank, outputs = 4, 100, 200
    q, p = gaussian(points, rank, outputs), gaussian(points, rank, outputs, shared, seed=1)
    inputs = [t.requires_grad_() for t in (q.mean, q.factor, q.weight)]
    with LargestTensor() as largest:
        torch.autograd.grad(gaussian_kl(q, p, NUGGET), inputs)
    assert largest.size == outputs * rank < outputs * points * rank


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rounds_gradients_once_after_they_are_scaled(dtype):
    """As under autocast: features and means in half precision, weights in float32, and a large factor on the loss."""
    q, p = gaussian(6, 4, 3), gaussian(6, 0, 3, shared=True, diagonal=0.5, seed=1)
    halves = [t.to(kind) for t, kind in zip((q.mean, q.factor, q.weight), (dtype, dtype, torch.float32), strict=True)]
    scale = 2.0**17  # infinite in float16
    gradients = []
    for kind in (None, torch.float64):
        inputs = [t.to(kind or t.dtype).requires_grad_() for t in halves]
        gradients.append(
            torch.autograd.grad(scale * (1e-3 * gaussian_kl(FunctionGaussian(*inputs), p, NUGGET)), inputs)
        )
    for found, exact in zip(*gradients, strict=True):
        torch.testing.assert_close(found, exact.to(found.dtype), rtol=torch.finfo(found.dtype).eps, atol=0.0)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(**SHAPES)
def test_diagonal_kl_equals_univariate_normals(**shapes):
    q, p = draw_pair(**shapes)
    normals = [Normal(d.mean, d.variance.sqrt()) for d in (dense(q, NUGGET), dense(p, NUGGET))]
    expected = kl_divergence(*normals).sum()
    torch.testing.assert_close(diagonal_kl(q, p, NUGGET), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("rank", [0, 3, 8])
@pytest.mark.parametrize("shared", [True, False])
def test_log_prob_equals_torch_distributions(rank, shared):
    g = gaussian(5, rank, 2, shared, diagonal=0.3)
    values = torch.randn(4, 5, 2, dtype=torch.float64)
    torch.testing.assert_close(g.log_prob(values), dense(g, 0.0).log_prob(values.mT).sum(-1))


@pytest.mark.parametrize("rank", [0, 3, 8], ids=["constant", "low_rank", "full_rank"])
def test_moments_equal_the_dense_ones(rank):
    g = gaussian(5, rank, 2, diagonal=0.3).prepared(NUGGET)
    expected = dense(g, 0.0)
    torch.testing.assert_close(g.covariance, expected.covariance_matrix)
    torch.testing.assert_close(g.variance(), expected.variance)
    torch.testing.assert_close(log_determinant(cholesky(g.covariance)), expected.covariance_matrix.logdet())


@pytest.mark.parametrize("divergence", [gaussian_kl, diagonal_kl])
@pytest.mark.parametrize(
    ("rank", "prior_rank", "outputs", "shared"), [(3, 3, 2, False), (8, 8, 7, False), (8, 0, 2, True)]
)
def test_gradients(divergence, rank, prior_rank, outputs, shared):
    p = gaussian(5, prior_rank, outputs, shared=not prior_rank, seed=1)
    q = gaussian(5, rank, outputs, shared)
    inputs = [t.requires_grad_() for t in (q.mean, q.factor, q.weight)]

    def kl(*tensors):
        return divergence(FunctionGaussian(*tensors), p, NUGGET)

    assert torch.autograd.gradcheck(kl, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(kl, inputs)


@pytest.mark.parametrize("divergence", [gaussian_kl, diagonal_kl])
@pytest.mark.parametrize("rank", [0, 3, 8])
def test_the_diagonal_can_be_learned(divergence, rank):
    q, p = gaussian(5, rank, 2), gaussian(5, rank, 2, seed=1)

    def kl(diagonal):
        return divergence(q, FunctionGaussian(p.mean, p.factor, p.weight, diagonal), NUGGET)

    diagonal = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(kl(diagonal).detach(), kl(0.3))
    assert torch.autograd.gradcheck(kl, diagonal)


def test_the_nugget_is_on_both_covariances():
    """Without features on either side the two are equal, however large the nugget."""
    mean = torch.zeros(3, 1, dtype=torch.float64)
    flat = FunctionGaussian(mean, mean.new_zeros(3, 0), mean.new_zeros(1, 0), 2.0)
    same = FunctionGaussian(mean, torch.eye(3, dtype=torch.float64), mean.new_full((1, 3), 2.0))
    assert abs(gaussian_kl(flat, same, 5.0)) < 1e-12
    assert abs(diagonal_kl(same, flat, 5.0)) < 1e-12


@pytest.mark.parametrize(
    ("q", "said"),
    [
        (gaussian(5, 2, 1), "5×5.*nugget"),
        (FunctionGaussian(torch.zeros(2, 1), torch.full((2, 3), torch.nan), torch.ones(1, 3)), "NaN"),
    ],
    ids=["singular", "nan"],
)
def test_a_covariance_without_cholesky_factor_says_what_to_change(q, said):
    p = gaussian(len(q.mean), 6, 1, seed=1)
    with pytest.raises(SingularCovarianceError, match=said):
        gaussian_kl(q, p, 0.0)
