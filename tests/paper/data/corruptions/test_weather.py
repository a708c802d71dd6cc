import numpy as np
import pytest
from scipy import ndimage

from data_files import images
from paper.data.corruptions import weather


@pytest.fixture
def random():
    return np.random.default_rng(0)


def scene(n=8):
    """Smooth coloured images with edges, away from black and white."""
    pixels = ndimage.gaussian_filter(images(n, 32, 32, 3).astype(float), (0, 3, 3, 0))
    pixels = (pixels - pixels.min()) / (pixels.max() - pixels.min()) * 120 + 60
    pixels[:, 8:20, 10:24] = 230 - pixels[:, 8:20, 10:24]
    return pixels.astype(np.uint8)


def test_fog_is_a_rough_field_from_zero_to_one_kept_below_the_images_maximum(random):
    fields = weather.plasma(50, 32, 3.0, random)
    assert fields.min() == 0 and fields.max() == 1 and np.ptp(fields, axis=(1, 2)).tolist() == [1] * 50
    steps = [np.abs(fields - np.roll(fields, k, axis=2)).mean() for k in (1, 4, 16)]
    assert steps == sorted(steps)
    rough = weather.plasma(50, 32, 1.75, random)
    assert np.abs(rough - np.roll(rough, 1, 2)).mean() > 1.5 * steps[0]
    x = scene() / 255
    foggy = weather.fog(x, (1.5, 1.75), random)
    assert (foggy.max((1, 2, 3)) <= x.max((1, 2, 3)) + 1e-12).all()


def test_details_of_fog_fade_by_the_square_of_the_decay_at_each_halving(random):
    fields = weather.plasma(200, 32, 2.0, random)

    def detail(step):
        corners = fields[:, ::step, ::step]
        mean = sum(np.roll(corners, (-i, -j), axis=(1, 2)) for i in (0, 1) for j in (0, 1)) / 4
        return np.square(fields[:, step // 2 :: step, step // 2 :: step] - mean).mean((1, 2))

    # uniform noise: the relative error of a mean square over 200 fields of 64 is about 1%
    assert np.sqrt(detail(4) / detail(2)).mean() == pytest.approx(4, rel=0.05)


def test_snow_only_lightens(random):
    x = scene() / 255
    snowy = weather.snow(x, (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8), random)
    assert (snowy >= x - 1e-12).all() and (snowy - x).mean() > 0.1
