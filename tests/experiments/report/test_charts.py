"""Geometry of the charts."""

import math

import pytest

from fsvi.experiments.report.charts import Axis, Chart, Line, line_style


def chart(*lines: Line, **settings) -> Chart:
    return Chart("title", Axis("x", 0.0, 2.0), Axis("y", -1.0, 1.0), lines, **settings)


def test_corners_of_the_axes_are_corners_of_the_box():
    left, top, right, bottom = chart().box
    assert (chart().across(0.0), chart().up(-1.0)) == (left, bottom)
    assert (chart().across(2.0), chart().up(1.0)) == (right, top)
    assert chart().across(1.0) == (left + right) / 2


def test_a_path_joins_the_points_and_leaves_out_what_is_no_number():
    line = Line([0.0, 1.0, 2.0], [-1.0, math.nan, 1.0], "ink0")
    left, top, right, bottom = chart().box
    assert chart(line).path(line) == f"M{left}.0 {bottom}.0L{right}.0 {top}.0"
    assert chart(line).path(Line([0.0], [math.nan], "ink0")) == ""


def test_an_area_is_closed_along_the_bottom():
    line = Line([0.0, 2.0], [1.0, 1.0], "ink0", filled=True)
    left, _, right, bottom = chart().box
    assert chart(line).area(line) == f"{chart(line).path(line)}L{right}.0 {bottom}L{left}.0 {bottom}Z"


def test_a_square_root_scale_gives_small_values_room():
    assert Axis("y", 0.0, 1.0, scale=math.sqrt).share(0.25) == pytest.approx(0.5)


def test_an_axis_around_values_ends_above_them():
    axis = Axis.around("y", [0.2, 1.31, math.nan])
    assert axis.low == 0.0 and axis.high >= 1.31 and axis.ticks[-1] == axis.high
    assert Axis.around("y", []).high > 0 and Axis.around("y", [0.0]).high > 0


def test_small_charts_are_smaller():
    assert chart(small=True).width < chart().width and chart(small=True).height < chart().height


def test_styles_differ():
    assert len({line_style(i) for i in range(24)}) == 24
