import pytest
import torch

from fsvi.functions.stein import spectral_score

MIXING = torch.tensor([[1.0, 0.0], [0.6, 0.8]], dtype=torch.float64)
MEAN = torch.tensor([2.0, -1.0], dtype=torch.float64)


def gaussian(num, seed=0):
    """Correlated samples of a Gaussian, and its score −Σ⁻¹(x − mean) at each."""
    generator = torch.Generator().manual_seed(seed)
    centred = torch.randn(num, 2, generator=generator, dtype=torch.float64) @ MIXING.T
    return centred + MEAN, -centred @ torch.linalg.inv(MIXING @ MIXING.T)


def relative_error(num, seed):
    samples, score = gaussian(num, seed)
    return float((spectral_score(samples) - score).norm() / score.norm())


def by_definition(samples, fraction):
    """Σ_j β_ij ψ_j(x) written out: ψ_j as a function, its derivatives by autograd."""
    num, size = samples.shape
    differences = (samples[:, None] - samples[None]).abs()
    upper = torch.ones(num, num).triu(1).bool()
    widths = torch.stack([differences[..., i][upper].median() for i in range(size)]) * size**0.5

    def kernel(x, others):
        return (-0.5 * ((x - others) / widths).square().sum(-1)).exp()

    gram = torch.stack([kernel(x, samples) for x in samples])
    roots, vectors = torch.linalg.eigh(gram)
    order = roots.argsort(descending=True)
    kept, total = [], 0.0
    for j in order:
        if total >= fraction * float(roots.sum()):
            break
        kept.append(int(j))
        total += float(roots[j])
    score = torch.zeros_like(samples)
    for j in kept:

        def eigenfunction(x, j=j):
            return num**0.5 / roots[j] * (vectors[:, j] * kernel(x, samples)).sum()

        beta = -torch.stack([torch.func.grad(eigenfunction)(x) for x in samples]).mean(0)
        score += beta * torch.stack([eigenfunction(x) for x in samples])[:, None]
    return score


@pytest.mark.parametrize("fraction", [0.5, 0.9, 0.99])
def test_it_is_what_its_definition_says(fraction):
    samples, _ = gaussian(12)
    torch.testing.assert_close(spectral_score(samples, fraction), by_definition(samples, fraction))


@pytest.mark.parametrize("seed", range(5))
def test_a_gaussian_s_score_within_its_known_error(seed):
    """With 400 samples in two dimensions the estimate is a fifth to a third off, mostly in the tails, and unbiased in
    size to about a tenth; a wrong sign, scale or eigenfunction is far outside."""
    samples, score = gaussian(400, seed)
    estimate = spectral_score(samples)
    correlation = torch.corrcoef(torch.stack([estimate.flatten(), score.flatten()]))[0, 1]
    slope = float((estimate * score).sum() / score.square().sum())
    assert correlation > 0.93
    assert relative_error(400, seed) < 0.4
    assert abs(slope - 1) < 0.2


def test_the_error_falls_with_more_samples():
    few, some, many = (sum(relative_error(num, seed) for seed in range(6)) / 6 for num in (25, 100, 400))
    assert many < 0.75 * some and some < 0.85 * few


def test_it_goes_with_the_units_of_every_dimension():
    samples, _ = gaussian(50)
    units = torch.tensor([10.0, 0.01], dtype=torch.float64)
    torch.testing.assert_close(spectral_score(samples * units + 3), spectral_score(samples) / units)


def test_batches_are_estimated_one_by_one():
    batch = torch.stack([gaussian(20, seed)[0] for seed in range(3)])
    batch[1] = batch[1] * 0.1
    expected = torch.stack([spectral_score(samples) for samples in batch])
    torch.testing.assert_close(spectral_score(batch), expected)
    assert spectral_score(batch.float()).dtype == torch.float32
