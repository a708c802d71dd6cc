import io

import numpy as np
import pytest
import torch
from matplotlib.colors import hsv_to_rgb, rgb_to_hsv
from PIL import Image
from scipy import ndimage

from data_files import images
from paper.data import corrupt
from paper.data.corruptions import digital, weather


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


def test_brightness_and_saturation_agree_with_hsv(random):
    x = scene() / 255
    x[0, 0, :4] = [[0, 0, 0], [1, 1, 1], [0.5, 0.5, 0.5], [1, 0, 0.2]]
    hsv = rgb_to_hsv(x)
    bright = hsv.copy()
    bright[..., 2] = (bright[..., 2] + 0.3).clip(0, 1)
    np.testing.assert_allclose(weather.brightness(x, 0.3, random), hsv_to_rgb(bright), atol=1e-12)
    for factor, offset in ((0.3, 0), (2, 0.1)):
        full = hsv.copy()
        full[..., 1] = (full[..., 1] * factor + offset).clip(0, 1)
        np.testing.assert_allclose(digital.saturate(x, (factor, offset), random), hsv_to_rgb(full), atol=1e-12)


def test_contrast_keeps_each_channels_mean_and_scales_its_deviation(random):
    x = scene() / 255
    changed = digital.contrast(x, 0.4, random)
    np.testing.assert_allclose(changed.mean((1, 2)), x.mean((1, 2)))
    np.testing.assert_allclose(changed.std((1, 2)), 0.4 * x.std((1, 2)))


@pytest.mark.parametrize("mode", ["mirror", "reflect"])
def test_sampling_agrees_with_scipy(mode, random):
    x, places = random.random((2, 9, 9, 3)), random.uniform(-7, 15, (2, 9, 9, 2))
    found = digital.sample(x, places, getattr(digital, f"_{mode}"))
    for i in range(2):
        for channel in range(3):
            at = [places[i, ..., 1], places[i, ..., 0]]
            expected = ndimage.map_coordinates(x[i, ..., channel], at, order=1, mode=mode)
            np.testing.assert_allclose(found[i, ..., channel], expected, atol=1e-12)


def test_elastic_without_reach_or_displacement_is_the_identity_and_an_affine_map_takes_corners_along(random):
    x = random.random((2, 32, 32, 3))
    np.testing.assert_allclose(digital.elastic_transform(x, (0, 0, 0), random), x, atol=1e-10)
    seed = np.random.default_rng(5)
    corners = np.array([[26.0, 26.0], [26.0, 6.0], [6.0, 6.0]])
    moved = corners + np.random.default_rng(5).uniform(-2.56, 2.56, (1, 3, 2))[0]
    ramp = np.broadcast_to(np.arange(32.0)[None, :, None], (32, 32, 1))[None] / 100  # each pixel is its column
    mapped = digital.elastic_transform(ramp, (0, 0, 2.56), seed)[0, ..., 0] * 100
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
