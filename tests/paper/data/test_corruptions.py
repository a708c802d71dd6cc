"""Corruptions of images: their published definitions, by oracles."""

import io

import numpy as np
import pytest
import torch
from matplotlib.colors import hsv_to_rgb, rgb_to_hsv
from PIL import Image
from scipy import ndimage

from data_files import images
from fsvi.errors import InvalidInputError
from paper.data import CORRUPTIONS, corrupt, corruptions

LEVELS = range(1, 6)
RISING = sorted(set(CORRUPTIONS) - {"glass_blur", "elastic_transform", "saturate", "motion_blur", "pixelate"})


@pytest.fixture
def random():
    return np.random.default_rng(0)


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


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_every_kind_changes_images_reproducibly_and_leaves_the_original(kind):
    x = batch()
    first = corrupt(x, kind, 3)
    assert first.dtype == torch.uint8 and first.shape == x.shape and not torch.equal(first, x)
    assert torch.equal(corrupt(x, kind, 3), first) and torch.equal(x, batch())


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


def test_an_unknown_kind_is_refused():
    with pytest.raises(InvalidInputError, match="did you mean 'fog'"):
        corrupt(batch(), "fogg", 1)


def test_noise_has_the_published_moments(random):
    x = np.full((40, 32, 32, 3), 0.4)
    n = x.size
    for made, std in (
        (corruptions.gaussian_noise(x, 0.08, random), 0.08),
        (corruptions.shot_noise(x, 100, random), np.sqrt(0.4 / 100)),
        (corruptions.speckle_noise(x, 0.2, random), 0.2 * 0.4),
    ):
        assert made.mean() == pytest.approx(0.4, abs=5 * std / np.sqrt(n))
        assert made.std() == pytest.approx(std, rel=5 / np.sqrt(2 * n))
    hit = corruptions.impulse_noise(x, 0.07, random)
    for value in (0.0, 1.0):
        assert (hit == value).mean() == pytest.approx(0.035, abs=5 * np.sqrt(0.035 / n))


@pytest.mark.parametrize(("severity", "std"), [(1, 0.04), (5, 0.10)])
def test_gaussian_noise_of_bytes(severity, std):
    x = torch.full((40, 3, 32, 32), 128, dtype=torch.uint8)
    changed = corrupt(x, "gaussian_noise", severity).double() - 128
    assert changed.std().item() == pytest.approx(255 * std, rel=0.02)
    assert changed.mean().item() == pytest.approx(-0.5, abs=5 * 255 * std / np.sqrt(x.numel()))  # values are truncated


def test_gaussian_and_defocus_blur_keep_a_flat_image_and_spread_a_point(random):
    flat, point = np.full((1, 32, 32, 3), 0.3), np.zeros((1, 32, 32, 3))
    point[:, 16, 16] = 1
    for change, level in (
        (corruptions.gaussian_blur, 0.8),
        (corruptions.defocus_blur, (1.5, 0.1)),
        (corruptions.zoom_blur, 1.16),
    ):
        np.testing.assert_allclose(change(flat, level, random), flat, atol=1e-12)
    np.testing.assert_allclose(corruptions.gaussian_blur(point, 0.8, random).sum(), 3, rtol=1e-12)
    disk = corruptions.defocus_blur(point, (1.5, 0.1), random)[0, 14:19, 14:19, 0]
    np.testing.assert_allclose(disk, np.pad(np.full((3, 3), 1 / 9), 1), atol=1e-12)
    soft = corruptions.defocus_blur(point, (0.3, 0.4), random)[0, 15:18, 16, 0]
    np.testing.assert_allclose(soft[0] / soft[1], np.exp(-1 / (2 * 0.4**2)), rtol=1e-12)


def test_motion_smears_along_its_angle_with_half_a_gaussian():
    point = np.zeros((3, 32, 32, 1))
    point[:, 16, 16] = 1
    smeared = corruptions.smear(point, 6, 2.0, np.array([0.0, 90.0, 45.0]))
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
    np.testing.assert_allclose(corruptions.enlarge(x, factor), large[:, trim : trim + 32, trim : trim + 32], atol=1e-12)


def test_glass_moves_colours_by_no_more_than_one_pixel_a_time(random):
    rows, columns = np.mgrid[0:32, 0:32] / 255
    x = np.stack([rows, columns, rows], axis=-1)[None]
    once = np.rint((x - corruptions.glass_blur(x.copy(), (0.0, 1), random)) * 255)
    twice = np.rint((x - corruptions.glass_blur(x.copy(), (0.0, 2), random)) * 255)
    assert set(np.unique(once)) == {0, 1} and set(np.unique(twice)) == {0, 1, 2}
    assert not once[0, :2].any() and not once[0, :, :2].any()
    assert once[0, 2:, 2:, 0].mean() == pytest.approx(0.5, abs=5 * 0.5 / 30)


def test_brightness_and_saturation_agree_with_hsv(random):
    x = scene() / 255
    x[0, 0, :4] = [[0, 0, 0], [1, 1, 1], [0.5, 0.5, 0.5], [1, 0, 0.2]]
    hsv = rgb_to_hsv(x)
    bright = hsv.copy()
    bright[..., 2] = (bright[..., 2] + 0.3).clip(0, 1)
    np.testing.assert_allclose(corruptions.brightness(x, 0.3, random), hsv_to_rgb(bright), atol=1e-12)
    for factor, offset in ((0.3, 0), (2, 0.1)):
        full = hsv.copy()
        full[..., 1] = (full[..., 1] * factor + offset).clip(0, 1)
        np.testing.assert_allclose(corruptions.saturate(x, (factor, offset), random), hsv_to_rgb(full), atol=1e-12)


def test_contrast_keeps_each_channels_mean_and_scales_its_deviation(random):
    x = scene() / 255
    changed = corruptions.contrast(x, 0.4, random)
    np.testing.assert_allclose(changed.mean((1, 2)), x.mean((1, 2)))
    np.testing.assert_allclose(changed.std((1, 2)), 0.4 * x.std((1, 2)))


def test_elastic_without_reach_or_displacement_is_the_identity_and_an_affine_map_takes_corners_along(random):
    x = random.random((2, 32, 32, 3))
    np.testing.assert_allclose(corruptions.elastic_transform(x, (0, 0, 0), random), x, atol=1e-10)
    seed = np.random.default_rng(5)
    corners = np.array([[26.0, 26.0], [26.0, 6.0], [6.0, 6.0]])
    moved = corners + np.random.default_rng(5).uniform(-2.56, 2.56, (1, 3, 2))[0]
    ramp = np.broadcast_to(np.arange(32.0)[None, :, None], (32, 32, 1))[None] / 100  # each pixel is its column
    mapped = corruptions.elastic_transform(ramp, (0, 0, 2.56), seed)[0, ..., 0] * 100
    at = ndimage.map_coordinates(mapped, [moved[:, 1], moved[:, 0]], order=1)
    np.testing.assert_allclose(at, corners[:, 0], atol=1e-6)


def test_jpeg_and_pixelate_are_those_of_pillow():
    image = Image.fromarray(scene(1)[0])
    file = io.BytesIO()
    image.save(file, "JPEG", quality=58)
    coarse = image.resize((27, 27), Image.Resampling.BOX).resize((32, 32), Image.Resampling.BOX)
    for kind, expected in (("jpeg_compression", Image.open(file)), ("pixelate", coarse)):
        found = corrupt(batch(1), kind, 3)[0].permute(1, 2, 0).numpy()
        np.testing.assert_array_equal(found, np.asarray(expected))


def test_fog_is_a_rough_field_from_zero_to_one_kept_below_the_images_maximum(random):
    fields = corruptions.plasma(50, 32, 3.0, random)
    assert fields.min() == 0 and fields.max() == 1 and np.ptp(fields, axis=(1, 2)).tolist() == [1] * 50
    steps = [np.abs(fields - np.roll(fields, k, axis=2)).mean() for k in (1, 4, 16)]
    assert steps == sorted(steps)
    rough = corruptions.plasma(50, 32, 1.75, random)
    assert np.abs(rough - np.roll(rough, 1, 2)).mean() > 1.5 * steps[0]
    x = scene() / 255
    foggy = corruptions.fog(x, (1.5, 1.75), random)
    assert (foggy.max((1, 2, 3)) <= x.max((1, 2, 3)) + 1e-12).all()


def test_details_of_fog_fade_by_the_square_of_the_decay_at_each_halving(random):
    fields = corruptions.plasma(200, 32, 2.0, random)

    def detail(step):
        corners = fields[:, ::step, ::step]
        mean = sum(np.roll(corners, (-i, -j), axis=(1, 2)) for i in (0, 1) for j in (0, 1)) / 4
        return np.square(fields[:, step // 2 :: step, step // 2 :: step] - mean).mean((1, 2))

    # uniform noise: the relative error of a mean square over 200 fields of 64 is about 1%
    assert np.sqrt(detail(4) / detail(2)).mean() == pytest.approx(4, rel=0.05)


def test_snow_only_lightens(random):
    x = scene() / 255
    snowy = corruptions.snow(x, (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8), random)
    assert (snowy >= x - 1e-12).all() and (snowy - x).mean() > 0.1
