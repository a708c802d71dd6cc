import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import ndimage

from paper.data import Normalize, augment, rotate, splits


def pictures(n=6, channels=3, height=9, width=12, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, channels, height, width), generator=generator, dtype=torch.uint8)


def test_statistics_are_those_of_every_channel_on_the_unit_scale():
    x = pictures(channels=2)
    normalize, unit = Normalize.of(x), x.double() / 255
    assert normalize.mean == pytest.approx(unit.mean((0, 2, 3)).tolist(), rel=1e-12)
    assert normalize.std == pytest.approx(unit.std((0, 2, 3), correction=0).tolist(), rel=1e-12)


def test_training_images_become_standard_and_others_keep_the_training_statistics():
    train, test = pictures(200), pictures(50, seed=1) // 2
    normalize = Normalize.of(train)
    z = normalize(train)
    assert z.dtype == torch.float32
    torch.testing.assert_close(z.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(z.std((0, 2, 3), correction=0), torch.ones(3))
    mean, std = (torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in (normalize.mean, normalize.std))
    torch.testing.assert_close(normalize(test).double(), (test.double() / 255 - mean) / std, atol=1e-6, rtol=1e-5)
    assert torch.equal(train, pictures(200))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_every_augmented_image_is_one_crop_of_its_own_and_all_crops_come_up_alike(dtype):
    n = 8100
    x = torch.arange(1, 1 + 2 * 5 * 6).view(1, 2, 5, 6).expand(n, -1, -1, -1).to(dtype)
    torch.manual_seed(0)
    out = augment(x)
    assert out.dtype == dtype and out.shape == x.shape
    padded = F.pad(x[:1], [4] * 4)
    crops = [padded[..., i : i + 5, j : j + 6] for i, j in itertools.product(range(9), range(9))]
    crops = torch.cat([*crops, *(crop.flip(-1) for crop in crops)])
    matches = (out.flatten(1)[:, None] == crops.flatten(1)).all(2)
    assert bool((matches.sum(1) == 1).all())
    counts = matches.sum(0)  # each Binomial(n, 1/162): mean 50, standard deviation 7
    assert counts.min() > 50 - 5 * 7.05 and counts.max() < 50 + 5 * 7.05


@pytest.mark.parametrize(("mode", "border"), [("zeros", "constant"), ("reflect", "reflect")])
def test_the_padding_is_the_largest_shift_and_its_mode_says_what_is_added(mode, border):
    torch.manual_seed(0)
    x = torch.rand(500, 1, 3, 3)
    padded = F.pad(x, [1] * 4, mode=border)
    crops = [padded[..., i : i + 3, j : j + 3] for i, j in itertools.product(range(3), range(3))]
    crops = torch.stack([*crops, *(crop.flip(-1) for crop in crops)], 1)
    found = (crops == augment(x, padding=1, mode=mode)[:, None]).flatten(2).all(2)
    assert bool(found.any(1).all()) and bool(found.any(0).all())


@pytest.mark.parametrize("degrees", [0, 15, 45, 90, 133.3, 180, -77])
@pytest.mark.parametrize("side", [9, 28])
def test_rotation_agrees_with_scipy(degrees, side):
    x = torch.rand(3, 2, side, side, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = ndimage.rotate(x.numpy(), degrees, axes=(3, 2), reshape=False, order=1, mode="grid-constant")
    np.testing.assert_allclose(rotate(x, degrees).numpy(), expected, atol=1e-10)


def test_splits_are_a_partition_of_the_wanted_sizes():
    train, held_out = splits(103, 0.1, seed=0)
    assert len(held_out) == 10 and torch.cat([train, held_out]).sort().values.tolist() == list(range(103))
    assert torch.equal(held_out, held_out.sort().values) and held_out.tolist() != list(range(10))
    assert torch.equal(splits(103, 0.1, seed=0)[1], held_out)
    assert not torch.equal(splits(103, 0.1, seed=1)[1], held_out)
    assert len(splits(5, 0.0, seed=0)[1]) == 0
