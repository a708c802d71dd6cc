import numpy as np
import pytest
import torch

from paper.data import corrupt
from paper.data.corruptions import noise


@pytest.fixture
def random():
    return np.random.default_rng(0)


def test_noise_has_the_published_moments(random):
    x = np.full((40, 32, 32, 3), 0.4)
    n = x.size
    for made, std in (
        (noise.gaussian_noise(x, 0.08, random), 0.08),
        (noise.shot_noise(x, 100, random), np.sqrt(0.4 / 100)),
        (noise.speckle_noise(x, 0.2, random), 0.2 * 0.4),
    ):
        assert made.mean() == pytest.approx(0.4, abs=5 * std / np.sqrt(n))
        assert made.std() == pytest.approx(std, rel=5 / np.sqrt(2 * n))
    hit = noise.impulse_noise(x, 0.07, random)
    for value in (0.0, 1.0):
        assert (hit == value).mean() == pytest.approx(0.035, abs=5 * np.sqrt(0.035 / n))


@pytest.mark.parametrize(("severity", "std"), [(1, 0.04), (5, 0.10)])
def test_gaussian_noise_of_bytes(severity, std):
    x = torch.full((40, 3, 32, 32), 128, dtype=torch.uint8)
    changed = corrupt(x, "gaussian_noise", severity).double() - 128
    assert changed.std().item() == pytest.approx(255 * std, rel=0.02)
    assert changed.mean().item() == pytest.approx(-0.5, abs=5 * 255 * std / np.sqrt(x.numel()))  # values are truncated
