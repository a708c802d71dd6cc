import math

import pytest
import scipy.integrate
import scipy.stats
import torch
from torch import distributions as D
from torch import nn

import fsvi
from likelihood_cases import N, bound, outputs


def test_many_degrees_of_freedom_are_a_gaussian():
    f, y = outputs(), outputs()
    likelihood = bound(fsvi.StudentT(scale=0.7, df=1e6, learn_scale=False))
    torch.testing.assert_close(likelihood.nll(f, y), bound(fsvi.Gaussian(0.7)).nll(f, y), rtol=1e-4, atol=0)


def test_the_root_of_the_fisher_information():
    """∫ p(y) (d/df log p(y))² dy by SciPy's quadrature."""
    df, scale = 3.5, 0.7
    likelihood = bound(fsvi.StudentT(scale, df), 1)
    root = likelihood.fisher_root(torch.randn(N, 1, dtype=torch.float64))

    def integrand(y: float) -> float:
        slope = (df + 1) * y / (df * scale**2 + y**2)
        return scipy.stats.t.pdf(y, df, 0, scale) * slope**2

    expected, _ = scipy.integrate.quad(integrand, -math.inf, math.inf)
    torch.testing.assert_close(root.square(), torch.full_like(root, expected), rtol=1e-6, atol=0)


def test_the_line_scale_and_freedom_of_generated_data_are_found():
    torch.manual_seed(0)
    x = torch.randn(4000, 1)
    y = 0.3 + 0.8 * x + 0.5 * D.StudentT(3.0).sample((4000, 1))
    method = fsvi.MAP(nn.Linear(1, 1), fsvi.StudentT(scale=1.0, df=6.0, learn_df=True), prior_variance=None)
    fsvi.fit(method, (x, y), epochs=80, batch_size=1000, lr=0.05)
    df, _, scale = scipy.stats.t.fit((y - 0.3 - 0.8 * x).flatten().numpy())
    assert method.net.weight.item() == pytest.approx(0.8, abs=0.05)
    assert method.net.bias.item() == pytest.approx(0.3, abs=0.05)
    assert float(method.likelihood.scale) == pytest.approx(scale, rel=0.05)
    assert float(method.likelihood.df) == pytest.approx(df, rel=0.1)
    assert float(method.likelihood.df) == pytest.approx(3.0, rel=0.2)
