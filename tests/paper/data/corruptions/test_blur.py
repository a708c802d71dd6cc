import numpy as np
import pytest
from scipy import ndimage

from paper.data.corruptions import blur


@pytest.fixture
def random():
    return np.random.default_rng(0)


def test_gaussian_and_defocus_blur_keep_a_flat_image_and_spread_a_point(random):
    flat, point = np.full((1, 32, 32, 3), 0.3), np.zeros((1, 32, 32, 3))
    point[:, 16, 16] = 1
    for change, level in ((blur.gaussian_blur, 0.8), (blur.defocus_blur, (1.5, 0.1)), (blur.zoom_blur, 1.16)):
        np.testing.assert_allclose(change(flat, level, random), flat, atol=1e-12)
    np.testing.assert_allclose(blur.gaussian_blur(point, 0.8, random).sum(), 3, rtol=1e-12)
    disk = blur.defocus_blur(point, (1.5, 0.1), random)[0, 14:19, 14:19, 0]
    np.testing.assert_allclose(disk, np.pad(np.full((3, 3), 1 / 9), 1), atol=1e-12)
    soft = blur.defocus_blur(point, (0.3, 0.4), random)[0, 15:18, 16, 0]
    np.testing.assert_allclose(soft[0] / soft[1], np.exp(-1 / (2 * 0.4**2)), rtol=1e-12)


def test_motion_smears_along_its_angle_with_half_a_gaussian():
    point = np.zeros((3, 32, 32, 1))
    point[:, 16, 16] = 1
    smeared = blur.smear(point, 6, 2.0, np.array([0.0, 90.0, 45.0]))
    weights = np.exp(-(np.arange(13) ** 2) / 8)
    weights /= weights.sum()
    np.testing.assert_allclose(smeared[0, 16, 16 - np.arange(13), 0], weights, rtol=1e-12)
    np.testing.assert_allclose(smeared[1, 16 - np.arange(13), 16, 0], weights, rtol=1e-12)
    assert smeared[2, 16, 16, 0] == pytest.approx(weights[0])
    assert smeared[2, 15, 15, 0] == pytest.approx(weights[1] + weights[2])  # both steps round to one pixel
    assert smeared[2, 16, :16].sum() == 0
    np.testing.assert_allclose(smeared.sum(axis=(1, 2, 3)), 1)


@pytest.mark.parametrize("factor", [1.0, 1.07, 1.25, 1.75, 2.25])
def test_enlargement_agrees_with_scipy(factor, random):
    x = random.random((2, 32, 32, 3))
    kept = int(np.ceil(32 / factor))
    start = (32 - kept) // 2
    large = ndimage.zoom(x[:, start : start + kept, start : start + kept], (1, factor, factor, 1), order=1)
    trim = (large.shape[1] - 32) // 2
    np.testing.assert_allclose(blur.enlarge(x, factor), large[:, trim : trim + 32, trim : trim + 32], atol=1e-12)


def test_glass_moves_colours_by_no_more_than_one_pixel_a_time(random):
    rows, columns = np.mgrid[0:32, 0:32] / 255
    x = np.stack([rows, columns, rows], axis=-1)[None]
    once = np.rint((x - blur.glass_blur(x.copy(), (0.0, 1), random)) * 255)
    twice = np.rint((x - blur.glass_blur(x.copy(), (0.0, 2), random)) * 255)
    assert set(np.unique(once)) == {0, 1} and set(np.unique(twice)) == {0, 1, 2}
    assert not once[0, :2].any() and not once[0, :, :2].any()
    assert once[0, 2:, 2:, 0].mean() == pytest.approx(0.5, abs=5 * 0.5 / 30)
