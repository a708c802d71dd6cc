"""The divergence between posterior and prior, against torch.distributions and through a file."""

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

import fsvi
import scenarios
from fsvi.errors import InvalidInputError
from fsvi.functions import FunctionGaussian
from fsvi.functions.divergences import KL, Divergence


def gaussian(seed):
    generator = torch.Generator().manual_seed(seed)
    mean, factor, weight = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((4, 2), (4, 3), (2, 3))
    )
    return FunctionGaussian(mean, factor, weight.exp())


def dense(g, covariance, nugget):
    matrix = g.covariance() + nugget * torch.eye(4, dtype=torch.float64)
    matrix = matrix if covariance == "full" else torch.diag_embed(matrix.diagonal(dim1=1, dim2=2))
    return MultivariateNormal(g.mean.T, matrix)


@pytest.mark.parametrize("nugget", [1e-2, 0.5])
@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_kl_is_that_of_torch(covariance, nugget):
    q, p = gaussian(0), gaussian(1)
    expected = kl_divergence(dense(q, covariance, nugget), dense(p, covariance, nugget)).sum()
    torch.testing.assert_close(KL(nugget, covariance).between(q, p), expected)


def test_a_divergence_of_ones_own_is_what_fsvi_minimizes():
    class Distance(Divergence):
        def between(self, q, p):
            return (q.mean - p.mean).square().sum()

    method = scenarios.classifier(divergence=Distance(), stochastic="last_layer", kl_weight=1.0)
    x, _ = scenarios.points(5)
    torch.testing.assert_close(method.function_kl(x), method.net.eval()(x).square().sum().double())


def test_a_file_keeps_the_divergence(tmp_path):
    method = scenarios.classifier(divergence=KL(0.3, "diagonal", num_draws=2))
    method.save(tmp_path / "method.fsvi")
    loaded = fsvi.load(tmp_path / "method.fsvi").divergence
    assert (loaded.nugget, loaded.covariance, loaded.num_draws) == (0.3, "diagonal", 2)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"nugget": -1e-3}, "nugget"),
        ({"nugget": float("nan")}, "nugget"),
        ({"nugget": "small"}, "nugget"),
        ({"covariance": "diag"}, "diagonal"),
        ({"num_draws": 0}, "num_draws"),
    ],
)
def test_impossible_settings_are_refused(settings, said):
    with pytest.raises(InvalidInputError, match=said):
        KL(**settings)


def test_something_else_is_not_a_divergence():
    with pytest.raises(InvalidInputError, match="divergence"):
        scenarios.classifier(divergence="kl")
