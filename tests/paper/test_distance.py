"""The study of heads that know distance: where its points are, and what its table divides."""

import pytest
import torch

from paper.distance import CASES, SHORT, network, table


@pytest.mark.parametrize("task", CASES)
def test_gaps_and_far_points_are_away_from_the_data(task):
    torch.manual_seed(0)
    x, _, gap, far = CASES[task](0)
    spacing = torch.cdist(x, x).fill_diagonal_(9).amin(1).mean()
    assert torch.cdist(gap, x).amin() > 2 * spacing
    assert torch.cdist(far, x).amin() > 2


def test_the_short_head_has_a_quarter_of_the_length_scale():
    x = torch.randn(50, 2)
    usual, short = (network(head, x, 1)[0].scale for head in ("distance of inputs", SHORT))
    torch.testing.assert_close(short, usual / 4)


def test_the_table_divides_by_the_standard_deviation_on_the_data():
    row = {"task": "ring", "method": "fsvi", "head": "linear", "std_data": 0.5, "std_gap": 1.0, "std_far": 2.0}
    assert table([row, {**row, "std_gap": 2.0}]).splitlines()[-1] == "| ring | fsvi | linear | 0.50 | 3.0 | 4.0 | – |"
