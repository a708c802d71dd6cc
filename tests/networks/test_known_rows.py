import math

import pytest
import torch
from scipy.stats import norm

from fsvi.networks.known_rows import KnownRows, NewRows, NormalScores, whiten


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def seen(x):
    scores = NormalScores(x.shape[1]).double()
    scores.see(x)
    return scores


def test_normal_scores_are_the_quantiles_of_ranks():
    """Against ranks, counted one by one, in a column with a heavy tail."""
    x = normal(400, 1).exp()
    ranks = torch.tensor([float((x < value).sum()) + 0.5 for value in x[:, 0]]) / 400
    expected = torch.as_tensor(norm.ppf(ranks))
    torch.testing.assert_close(seen(x)(x)[:, 0], expected, rtol=0, atol=0.15)


def test_frequent_values_have_the_middle_of_their_scores():
    x = torch.tensor([[0.0]] * 60 + [[1.0]] * 40).double()
    end = norm.ppf(1 - 0.5 / 100)
    zero, one = seen(x)(torch.tensor([[0.0], [1.0]]).double())[:, 0].tolist()
    assert zero == pytest.approx((-end + norm.ppf(0.6)) / 2, abs=0.1)
    assert one == pytest.approx((end + norm.ppf(0.6)) / 2, abs=0.1)


def test_beyond_the_data_scores_grow_with_the_tail():
    """An exponential column: P(x > t) = exp(−t), whose score is known in closed form."""
    x = -torch.rand(20_000, 1, generator=torch.Generator().manual_seed(0)).double().log()
    scores, top = seen(x), float(x.max())
    gain = float(torch.diff(scores(torch.tensor([[top + 0.1], [top + 1.1]]).double()), dim=0))
    expected = norm.isf(0.5 / 20_000 * math.exp(-1.1)) - norm.isf(0.5 / 20_000 * math.exp(-0.1))
    assert gain == pytest.approx(expected, rel=0.1)
    gaussian = seen(normal(20_000, 1))
    far = gaussian(torch.tensor([[6.0], [5.0]]).double())
    assert float(far[0] - far[1]) == pytest.approx(1.0, rel=0.5)


def test_values_undo_scores():
    x = torch.stack([normal(300), normal(300, seed=1).exp()], 1)
    scores = seen(x)
    for score in (-4.0, -1.0, 0.3, 1.5, 5.0):
        back = scores(scores.values(torch.tensor(score).double())[None])
        torch.testing.assert_close(back[0], torch.full((2,), score).double(), rtol=0, atol=0.06)


def test_distances_are_those_of_the_formulas():
    x = normal(200, 3) @ normal(3, 3, seed=1)
    known = KnownRows.of(x)
    limits = torch.tensor([2.0, 2.5, 0.7, 0.02, 5.0]).double()
    known.limit(limits)
    rows = torch.cat([x[:20] * 2.5, x[:5] + 0.03])
    found = known(rows)
    low, high = (known.scores.values(torch.tensor(s).double()) for s in (-2.0, 2.0))
    std = x.std(0, correction=0)
    outside = torch.where(rows > high, (rows - high) / std, torch.where(rows < low, (rows - low) / std, 0.0))
    nearest = (rows[:, :, None] - known.scores.knots[None]).abs().amin(2) / std
    gap = torch.where(outside == 0, (nearest - 0.02).clamp_min(0), 0.0)
    torch.testing.assert_close(found[:, :3].abs(), outside.abs() + gap)
    assert (found[:, :3] * outside >= 0).all() and (gap > 0).any()
    scores, new = known.scores(x), known.scores(rows)
    spread = torch.diag(scores.std(0, correction=0))
    ridge = 3 / 200  # columns over rows
    precision = torch.linalg.inv(spread @ (torch.corrcoef(scores.T) + ridge * torch.eye(3)) @ spread)
    deviation = new - scores.mean(0)
    mahalanobis = (deviation @ precision * deviation).sum(1).sqrt()
    torch.testing.assert_close(found[:, 3], (mahalanobis - 2.5).clamp_min(0), rtol=1e-6, atol=1e-6)
    gaps = new[:, None] - scores[None]
    second = (gaps @ precision * gaps).sum(2).sqrt().sort(1).values[:, 1]
    torch.testing.assert_close(found[:, 4], (second - 0.7).clamp_min(0), rtol=1e-6, atol=1e-6)
    assert (found[:, :3] != 0).any() and (found[:, 3:] > 0.1).any(0).all()


def test_a_range_ends_at_its_width():
    x = torch.cat([normal(300, 2), torch.full((1, 2), 1000.0).double()])
    known = KnownRows.of(x)
    limits = torch.tensor([known.scores.end, 9.0, 9.0, 9.0, 5.0]).double()
    known.limit(limits)
    torch.testing.assert_close(known.high, x.mean(0) + 5 * x.std(0, correction=0))
    limits[4] = 1e9
    known.limit(limits)
    torch.testing.assert_close(known.high, torch.full((2,), 1000.0).double())


def test_nearly_constant_columns_do_not_blind_the_others():
    x = normal(300, 3)
    x[:, 2] = 0.0
    x[::60, 2] = torch.arange(5).double()
    limits = NewRows(x).limits(1.5, 10.0)
    assert limits[0] < norm.ppf(1 - 0.5 / 240) + 2.01


def test_a_new_combination_of_usual_values_is_far():
    rows = normal(300, 1) + 0.2 * normal(300, 2, seed=1)
    known = KnownRows.of(rows)
    known.limit(NewRows(rows).limits(1.0, 5.0))
    far = known(torch.tensor([[1.5, 1.5], [1.5, -1.5]]).double())
    assert (far[:, :2].abs() < 0.1).all() and (far[0] < 0.2).all() and (far[1, 2:] > 1).all()


def test_a_gap_inside_of_the_data_is_far():
    x = torch.cat([torch.linspace(0, 1, 100), torch.linspace(2, 3, 100)]).double()[:, None]
    known = KnownRows.of(x)
    known.limit(NewRows(x).limits(1.0, 5.0))
    inside, gap = known(torch.tensor([[0.5], [1.5]]).double())
    assert (inside == 0).all() and gap[0].abs() > 0.3


def test_about_the_share_of_new_rows_is_left_out():
    shares = []
    for seed in range(20):
        x, new = normal(150, 6, seed=seed), normal(500, 6, seed=100 + seed)
        known = KnownRows.of(x)
        known.limit(NewRows(x).limits(1.0, 5.0))
        shares.append(torch.stack([(known.unusualness(new) > known.limits[:4]).double().mean(0)]))
    share = torch.cat(shares).mean(0)
    assert ((share > 0.005) & (share < 0.035)).all()


def test_rows_are_judged_by_others():
    """Each row's values are those of distances that have seen only the rows of other folds."""
    x = normal(40, 2)
    new = NewRows(x)
    limits = new.limits(1.0, 5.0)
    found = new.distances(limits)
    for fold in range(5):
        mine = torch.arange(40) % 5 == fold
        known = KnownRows.of(x[new.index][~mine])
        known.limit(limits)
        torch.testing.assert_close(found[mine], known(x[new.index][mine]))


def test_whitened_rows_have_no_correlations():
    rows = torch.cat([normal(200, 4) @ normal(4, 4, seed=1), torch.full((200, 1), 7.0).double()], 1)
    white = (rows - rows.mean(0)) @ whiten(rows)
    expected = torch.cov((rows[:, :4]).T, correction=0)
    deviation = rows[:, :4] - rows[:, :4].mean(0)
    distances = (deviation @ torch.linalg.inv(expected) * deviation).sum(1).sqrt()
    torch.testing.assert_close(white.norm(dim=1), distances, rtol=0.05, atol=0)


@pytest.mark.parametrize("rows", [1, 2, 3, 7])
def test_tiny_tables_and_constant_columns(rows):
    x = torch.cat([normal(rows, 2), torch.full((rows, 1), 3.0).double()], 1)
    known = KnownRows.of(x)
    known.limit(NewRows(x).limits(1.5, 1e9))
    far = known(x + torch.tensor([0.0, 0.0, 50.0]).double())
    assert known(x).isfinite().all() and (far[:, 2] > 1).all()


def test_tables_with_many_columns_are_not_whitened():
    x = normal(20, 501)
    known = KnownRows.of(x)
    known.limit(NewRows(x).limits(1.5, 1e9))
    assert (known(x) == 0).all() and (known(x + 50)[:, :-2] > 1).all()
