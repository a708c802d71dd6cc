from decimal import ROUND_CEILING, Decimal

import pytest
import torch

from fsvi.calibration import LAC, rows_needed
from fsvi.errors import InvalidInputError


@pytest.mark.parametrize("alpha", [0.3, 0.2, 0.1, 0.05, 0.01])
def test_the_quantile_has_the_rank_that_exact_decimals_give(alpha):
    """Also where (n + 1)(1 − α) is whole: 10 · 0.7 is 7.000000000000001 in floating point."""
    for num in range(rows_needed(alpha), 300):
        rank = ((num + 1) * (1 - Decimal(str(alpha)))).to_integral_value(ROUND_CEILING)
        assert LAC(scores=torch.arange(1, num + 1)).bound(alpha) == int(rank)


@pytest.mark.parametrize(("alpha", "rows"), [(0.2, 4), (0.1, 9), (0.05, 19), (0.01, 99), (0.3, 3)])
def test_how_many_rows_are_needed(alpha, rows):
    assert rows_needed(alpha) == rows
    assert LAC(scores=torch.arange(rows)).bound(alpha) == rows - 1
    with pytest.raises(InvalidInputError, match=f"at least {rows} held-out rows"):
        LAC(scores=torch.arange(rows - 1)).bound(alpha)
