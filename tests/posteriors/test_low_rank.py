"""The Gaussian of collected vectors against its formula."""

import pytest
import torch

from fsvi.posteriors.low_rank import LowRank


def collected(vectors: torch.Tensor, size: int, rank: int) -> LowRank:
    gaussian = LowRank(vectors[0], size, rank)
    for vector in vectors:
        gaussian.collect(vector)
    return gaussian


def formula(vectors: torch.Tensor, rank: int) -> torch.Tensor:
    """½ diag(σ²) + ½ D Dᵀ/(K − 1), from the vectors themselves."""
    deviations = torch.stack([vectors[i] - vectors[: i + 1].mean(0) for i in range(len(vectors))])[-rank:]
    diagonal = vectors.var(0, correction=0).diag()
    return 0.5 * diagonal + 0.5 * deviations.T @ deviations / (len(deviations) - 1)


@pytest.mark.parametrize(("num", "rank"), [(3, 5), (8, 3)])
def test_sampled_covariance_matches_the_formula(num, rank):
    vectors = torch.randn(num, 4, dtype=torch.float64) @ torch.randn(4, 4, dtype=torch.float64) + 3
    gaussian, draws = collected(vectors, 4, rank), 4_000
    generator = torch.Generator().manual_seed(1)
    samples = torch.stack([gaussian.draw(generator) for _ in range(draws)])
    covariance = formula(vectors, rank)
    variances = covariance.diagonal()
    # a Gaussian's sample covariance has variance (Σᵢᵢ Σⱼⱼ + Σᵢⱼ²)/S
    error = ((variances[:, None] * variances + covariance.square()) / draws).sqrt()
    assert bool(((samples.T.cov() - covariance).abs() < 5 * error).all())
    assert bool(((samples.mean(0) - vectors.mean(0)).abs() < 5 * (variances / draws).sqrt()).all())


def test_moments_are_those_of_the_vectors():
    vectors = torch.randn(7, 3, dtype=torch.float64)
    gaussian = collected(vectors, 3, rank=4)
    torch.testing.assert_close(gaussian.mean.data, vectors.mean(0))
    torch.testing.assert_close(gaussian.variances, vectors.var(0, correction=0))


def test_small_variances_survive_in_single_precision():
    vectors = 100 + 1e-3 * torch.randn(50, 3)
    expected = vectors.double().var(0, correction=0)
    torch.testing.assert_close(collected(vectors, 3, rank=4).variances.double(), expected, rtol=0.02, atol=0)


def test_the_last_entries_are_points():
    vectors = torch.randn(5, 4)
    gaussian = collected(vectors, 3, rank=4)
    draws = torch.stack([gaussian.draw(torch.Generator().manual_seed(s)) for s in range(3)])
    assert bool((draws[:, 3] == gaussian.mean[3]).all())
    assert bool((draws[0, :3] != draws[1, :3]).all())
