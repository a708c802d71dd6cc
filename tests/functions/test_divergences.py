"""The divergence between posterior and prior, against torch.distributions and through a file."""

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

import fsvi
import scenarios
from fsvi.functions.divergences import KL, Divergence, RegularizedKL
from fsvi.functions.gaussian import FunctionGaussian
from fsvi.functions.kernels import RBF, Matern


def gaussian(seed):
    generator = torch.Generator().manual_seed(seed)
    mean, factor, weight = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((4, 2), (4, 3), (2, 3))
    )
    return FunctionGaussian(mean, factor, weight.exp())


def dense(g, covariance, nugget):
    matrix = g.covariance + nugget * torch.eye(4, dtype=torch.float64)
    matrix = matrix if covariance == "full" else torch.diag_embed(matrix.diagonal(dim1=1, dim2=2))
    return MultivariateNormal(g.mean.T, matrix)


@pytest.mark.parametrize("nugget", [1e-2, 0.5])
@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_kl_is_that_of_torch(covariance, nugget):
    q, p = gaussian(0), gaussian(1)
    expected = kl_divergence(dense(q, covariance, nugget), dense(p, covariance, nugget)).sum()
    torch.testing.assert_close(KL(nugget, covariance).between(q, p), expected)


@pytest.mark.parametrize("gamma", [1e-3, 0.2])
def test_the_regularizer_grows_with_the_number_of_points(gamma):
    q, p = gaussian(0), gaussian(1)
    expected = kl_divergence(dense(q, "full", 4 * gamma), dense(p, "full", 4 * gamma)).sum()
    torch.testing.assert_close(RegularizedKL(gamma).between(q, p), expected)


def test_joined_outputs_do_not_count_as_points():
    """The divergence is the same, however many outputs are written as one Gaussian."""
    q, p = gaussian(0), gaussian(1)
    assert q.num_points == q.joint().num_points == q.joint().prepared(0.1).num_points == 4
    white = FunctionGaussian(q.mean, q.factor[:, :0], q.weight[:1, :0], 0.5)
    assert white.joint().num_points == 4
    for divergence in (RegularizedKL(0.1), KL(0.1)):
        torch.testing.assert_close(divergence.between(q.joint(), p.joint()), divergence.between(q, p))


def test_the_regularized_kl_converges_where_the_kl_grows_with_the_number_of_points():
    def at(divergence, num):
        x = torch.linspace(-1, 1, num, dtype=torch.float64)[:, None]
        smooth, rough = (torch.linalg.eigh(kernel(x)) for kernel in (RBF(0.5), Matern(0.5, 0.5)))
        mean = torch.zeros(num, 1, dtype=torch.float64)
        q, p = (FunctionGaussian(mean, e.eigenvectors, e.eigenvalues.clamp_min(0)[None]) for e in (smooth, rough))
        return float(divergence.between(q, p))

    regular, plain = ([at(d, num) for num in (25, 50, 100, 200)] for d in (RegularizedKL(1e-3), KL(1e-3)))
    assert plain[3] > 1.5 * plain[2] > 1.5**2 * plain[1]
    assert max(regular) < 1.1 * min(regular) and abs(regular[3] / regular[2] - 1) < 0.05


def test_a_divergence_of_ones_own_is_what_fsvi_minimizes():
    class Distance(Divergence):
        def between(self, q, p):
            return (q.mean - p.mean).square().sum()

    method = scenarios.classifier(divergence=Distance(), stochastic="last_layer", kl_weight=1.0)
    x, _ = scenarios.points(5)
    torch.testing.assert_close(method.function_kl(x), method.net.eval()(x).square().sum())


def test_a_file_keeps_the_divergence(tmp_path):
    method = scenarios.classifier(divergence=KL(0.3, "diagonal", num_draws=2))
    method.save(tmp_path / "method.fsvi")
    loaded = fsvi.load(tmp_path / "method.fsvi").divergence
    assert (loaded.nugget, loaded.covariance, loaded.num_draws) == (0.3, "diagonal", 2)
