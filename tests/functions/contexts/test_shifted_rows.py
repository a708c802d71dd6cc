import math

import pytest
import torch

from fsvi.functions.contexts import ShiftedRows

NUM = 4000


def normal_rows(num=500, columns=6, dtype=torch.float32):
    return torch.randn(num, columns, generator=torch.Generator().manual_seed(0)).to(dtype)


def drawn(x, num=NUM, seed=0, **settings):
    """Points, and how far each value is from a training row that could be its origin, in standard deviations."""
    context = ShiftedRows(**settings)
    context.prepare(x)
    torch.manual_seed(seed)
    return context.sample(num, x)


def shifts_from_one_row(scale=None, num=NUM, columns=6, **settings):
    """Shifts in standard deviations, seen by drawing from a batch whose rows are all zero."""
    x = normal_rows(columns=columns) * (1.0 if scale is None else torch.tensor(scale))
    context = ShiftedRows(**settings)
    context.prepare(x)
    torch.manual_seed(0)
    return context.sample(num, torch.zeros(8, columns)) / x.std(0, correction=0)


def test_shifts_have_the_sizes_that_were_asked_for():
    shifts = shifts_from_one_row(scale=[1.0, 10.0, 0.1, 1.0, 5.0, 1.0]).abs()
    moved = (shifts > 0).sum(1)
    sizes = shifts.amax(1)
    single, every = sizes[moved == 1], sizes[moved == 6]
    assert single.min() >= 4 - 1e-4 and single.max() <= 10 + 1e-4 and single.min() < 4.1 and single.max() > 9.5
    assert every.min() >= 3 - 1e-4 and every.max() <= 10 + 1e-4 and every.min() < 3.1
    # u² has mean 1/3: small shifts are more likely than large ones
    assert every.mean().item() == pytest.approx(3 + 7 / 3, abs=5 * 2.1 / math.sqrt(len(every)))


def test_each_point_moves_all_its_columns_equally_far():
    shifts = shifts_from_one_row().abs()
    largest = shifts.amax(1, keepdim=True)
    assert ((shifts < 1e-5) | ((shifts - largest).abs() < 1e-4)).all()


def test_one_column_all_columns_and_subsets_have_their_shares():
    shifts = shifts_from_one_row()
    moved = (shifts != 0).sum(1)
    subsets = 0.2 / 7  # a subset of uniform share has each size, 0 to 6, equally often
    for size, share in [(1, 0.4 + subsets), (6, 0.4 + subsets), (3, subsets)]:
        expected = NUM * share
        assert abs(int((moved == size).sum()) - expected) < 5 * math.sqrt(expected)
    alone = (shifts != 0)[moved == 1].sum(0)
    assert (alone - alone.float().mean()).abs().max() < 5 * math.sqrt(alone.float().mean())


def test_constant_columns_stay():
    x = normal_rows()
    x[:, 2] = 0.1
    points = drawn(x)
    assert (points[:, 2] == x[0, 2]).all()
    assert (points[:, 1] != 0).any() and points.isfinite().all()
