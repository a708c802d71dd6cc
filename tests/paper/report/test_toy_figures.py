"""Figures are written, show what they should, and leave matplotlib as it was."""

import io
from dataclasses import replace

import matplotlib
import numpy as np
import pytest
from matplotlib.image import imread

from paper.report.toy_figures import DARK, LIGHT, draw
from paper.tasks.toy_predictions import Band, Curve, Surface


def surface(variance: float = 0.2) -> Surface:
    axis = np.linspace(-6, 6, 41, dtype=np.float32)
    mean = np.broadcast_to(1 / (1 + np.exp(-axis)), (41, 41)).copy()
    return Surface(np.array([[-1.0, 0.0], [1.0, 0.0]]), np.array([0, 1]), axis, mean, variance * mean)


def curve() -> Curve:
    bands = []
    for reach in (3, 9):
        x = np.linspace(-reach, reach, 51, dtype=np.float32)
        bands.append(Band(x, np.sin(x), 0.1 * np.abs(x), 0.1 * np.abs(x) + 0.2))
    return Curve(np.array([-1.0, 1.0]), np.array([-0.8, 0.8]), *bands)


def pixels(png: bytes) -> np.ndarray:
    return imread(io.BytesIO(png))


def share_near(png: bytes, colour: str) -> float:
    """The share of pixels that have about this colour."""
    rgb = np.array(matplotlib.colors.to_rgb(colour))
    return float((np.abs(pixels(png)[..., :3] - rgb).max(-1) < 0.03).mean())


@pytest.mark.parametrize("picture", [surface(), curve()], ids=["surface", "curve"])
@pytest.mark.parametrize("stacked", [False, True])
def test_a_picture_of_many_colours_large_enough_to_print(picture, stacked):
    image = pixels(draw({"FSVI": picture}, LIGHT, stacked))
    height, width, _ = image.shape
    assert (height > width) == stacked
    assert max(height, width) >= 1000
    assert len(np.unique((image.reshape(-1, 4) * 255).astype(np.uint8), axis=0)) > 50


def test_every_method_gets_a_row():
    one, three = (pixels(draw({f"method {i}": surface() for i in range(n)})) for n in (1, 3))
    assert one.shape[1] == three.shape[1]
    assert three.shape[0] == pytest.approx(3 * one.shape[0], rel=0.02)


def test_themes_differ_in_their_background():
    light, dark = (draw({"FSVI": curve()}, theme) for theme in (LIGHT, DARK))
    assert share_near(light, LIGHT.background) > 0.4 > share_near(light, DARK.background)
    assert share_near(dark, DARK.background) > 0.4 > share_near(dark, LIGHT.background)


def test_bands_show_the_functions_uncertainty():
    wide = curve()
    narrow = replace(wide, zoomed=replace(wide.zoomed, function_std=0.01 * wide.zoomed.function_std))
    strongest_band = matplotlib.colors.LinearSegmentedColormap.from_list("", [LIGHT.background, LIGHT.accent])(0.52)
    shares = [share_near(draw({"FSVI": shown}), strongest_band) for shown in (wide, narrow)]
    assert shares[0] > 1.5 * shares[1]


def test_methods_share_one_scale_of_variance():
    alone, beside = draw({"b": surface(0.02)}), draw({"a": surface(0.24), "b": surface(0.02)})
    height = pixels(alone).shape[0]
    lower = pixels(beside)[-height:]
    assert np.abs(pixels(alone)[:, -height:] - lower[:, -height:]).max() > 0.3


def test_matplotlibs_settings_are_left_alone():
    before = dict(matplotlib.rcParams)
    draw({"FSVI": curve()}, DARK)
    assert dict(matplotlib.rcParams) == before


def test_the_same_picture_gives_the_same_bytes():
    assert draw({"FSVI": curve()}) == draw({"FSVI": curve()})
