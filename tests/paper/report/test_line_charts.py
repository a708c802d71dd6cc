"""Charts are drawn, follow the theme of the page, and refuse what cannot be drawn."""

import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import matplotlib
import pytest

from paper.report.line_charts import COLORS, Axis, Line, LineChart, LineStyle, Mark, draw_chart, upper_part

INK = LineStyle("ink0")


def chart(*lines: Line, **settings) -> LineChart:
    return LineChart("title", Axis("horizontal", 0.0, 2.0), Axis("vertical", -1.0, 1.0), lines, **settings)


def path(svg: str, color: str) -> str:
    """The first path with this stroke."""
    (found, *_) = re.findall(rf'<path d="([^"]*)"[^>]*stroke: var\(--{color}\)', svg)
    return found


def test_a_chart_is_an_svg_with_its_texts():
    svg = draw_chart(chart(Line([0.0, 2.0], [-1.0, 1.0], INK), marks=[Mark(1.0, 0.0, "a mark")])).decode()
    root = ElementTree.fromstring(svg)
    texts = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert root.tag.endswith("svg") and {"horizontal", "a mark", "0.5"} <= texts


def test_a_line_has_its_points_and_leaves_out_what_is_no_number():
    whole, gap = ([-1.0, 0.0, 1.0], [-1.0, math.nan, 1.0])
    counts = [path(draw_chart(chart(Line([0.0, 0.5, 2.0], y, INK))).decode(), "ink0").count("L") for y in (whole, gap)]
    assert counts == [2, 1]


def test_colors_have_names_with_values_for_both_themes():
    svg = draw_chart(chart(Line([0.0, 2.0], [-1.0, 1.0], INK), diagonal=True)).decode()
    drawing = svg[svg.index("</style>") :]
    assert not any(light in drawing for light, _ in COLORS.values())
    light, dark = COLORS["ink0"]
    assert f"--ink0:{light}" in svg and f"--ink0:{dark}" in svg.partition("prefers-color-scheme: dark")[2]


def test_light_colors_differ_since_they_stand_for_their_names():
    assert len({light for light, _ in COLORS.values()}) == len(COLORS)


def test_styles_differ():
    assert len({LineStyle.number(i) for i in range(24)}) == 24
    assert all(LineStyle.number(i).color in COLORS for i in range(24))


@pytest.mark.parametrize(("x", "y"), [([0.0], [0.0, 1.0]), ([], []), ([0.0], ["x"])])
def test_lines_that_cannot_be_drawn_are_refused(x, y):
    with pytest.raises(ValueError):
        Line(x, y, INK)


def test_an_axis_of_percentages():
    assert Axis("share", unit="%").show(0.25) == "25%" and Axis("angle", unit="°").show(45.0) == "45°"
    lines = [Line([0.0, 1.0], [0.83, math.nan], INK)]
    assert upper_part("accuracy", lines).low == 0.8


def test_a_square_root_scale_gives_small_values_room():
    def height(square_root: bool) -> float:
        y = Axis("share", 0.0, 1.0, square_root=square_root)
        svg = draw_chart(LineChart("", Axis("x"), y, [Line([0.0, 1.0], [0.0, 0.25], INK)])).decode()
        numbers = [float(number) for number in re.findall(r"-?\d+\.?\d*", path(svg, "ink0"))]
        return numbers[1] - numbers[3]

    assert height(True) == pytest.approx(2 * height(False), rel=0.02)


def test_a_logarithmic_scale_gives_doublings_equal_room():
    x = Axis("size", 1.0, 16.0, (1, 4, 16), logarithmic=True)
    svg = draw_chart(LineChart("", x, Axis("y"), [Line([1, 2, 4, 8, 16], [0.0] * 5, INK)])).decode()
    places = [float(number) for number in re.findall(r"[ML] (-?\d+\.?\d*)", path(svg, "ink0"))]
    steps = [after - before for before, after in pairwise(places)]
    assert steps == pytest.approx([steps[0]] * len(steps), rel=1e-3)
    assert len(re.findall(r"xtick_\d", svg)) == 3


def test_lines_with_a_label_are_in_the_legend():
    named, nameless = (draw_chart(chart(Line([0.0, 2.0], [0.0, 1.0], INK, label=label))) for label in ("a line", None))
    assert b"a line" in named and b"legend" in named and b"legend" not in nameless


def test_the_same_chart_gives_the_same_bytes_and_leaves_matplotlib_alone():
    before = dict(matplotlib.rcParams)
    made = chart(Line([0.0, 2.0], [-1.0, 1.0], INK, filled=True), small=True)
    assert made.svg == draw_chart(made) and dict(matplotlib.rcParams) == before
