import numpy as np
import pytest
import torch
from scipy import ndimage

from data_files import images
from fsvi.errors import InvalidInputError
from paper.data import CORRUPTIONS, corrupt

LEVELS = range(1, 6)


def scene(n=8):
    """Smooth coloured images with edges, away from black and white."""
    pixels = ndimage.gaussian_filter(images(n, 32, 32, 3).astype(float), (0, 3, 3, 0))
    pixels = (pixels - pixels.min()) / (pixels.max() - pixels.min()) * 120 + 60
    pixels[:, 8:20, 10:24] = 230 - pixels[:, 8:20, 10:24]
    return pixels.astype(np.uint8)


def batch(n=8):
    return torch.from_numpy(scene(n)).permute(0, 3, 1, 2).contiguous()


def error(x, kind, severity):
    return float((corrupt(x, kind, severity).float() - x.float()).square().mean())


def test_the_benchmarks_kinds_but_two_are_here():
    assert len(CORRUPTIONS) == 17 and not {"frost", "spatter"} & set(CORRUPTIONS)


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_every_kind_changes_images_reproducibly_and_leaves_the_original(kind):
    x = batch()
    first = corrupt(x, kind, 3)
    assert first.dtype == torch.uint8 and first.shape == x.shape and not torch.equal(first, x)
    assert torch.equal(corrupt(x, kind, 3), first) and torch.equal(x, batch())


RISING = sorted(set(CORRUPTIONS) - {"glass_blur", "elastic_transform", "saturate", "motion_blur", "pixelate"})


@pytest.mark.parametrize("kind", RISING)
def test_severities_rise(kind):
    errors = [error(batch(16), kind, severity) for severity in LEVELS]
    assert errors == sorted(errors) and errors[-1] > 1.2 * errors[0]


@pytest.mark.parametrize("kind", ["gaussian_noise", "glass_blur", "motion_blur", "snow", "fog", "elastic_transform"])
def test_seeds_and_images_differ_in_random_kinds(kind):
    x = batch(1).expand(2, -1, -1, -1)
    first = corrupt(x, kind, 4)
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first, corrupt(x, kind, 4, seed=1))


def test_images_beyond_one_chunk_all_come_back():
    x = batch(8).repeat(150, 1, 1, 1)
    changed = corrupt(x, "contrast", 1)
    assert changed.shape == x.shape and torch.equal(changed[-8:], corrupt(x[-8:], "contrast", 1))


@pytest.mark.parametrize(
    ("x", "kind", "severity", "sentence"),
    [
        (batch().float(), "fog", 1, "uint8"),
        (batch()[:, :1], "fog", 1, r"\(8, 1, 32, 32\)"),
        (batch(), "fogg", 1, "did you mean 'fog'"),
        (batch(), "frost", 1, "kind='frost'"),
        (batch(), "fog", 0, "severity=0"),
        (batch(), "fog", 6, "severity=6"),
    ],
)
def test_bad_requests(x, kind, severity, sentence):
    with pytest.raises(InvalidInputError, match=sentence):
        corrupt(x, kind, severity)
