import numpy as np
import pytest

from fsvi.estimators.rows import Scaler, merge_rows, repeat_rows


@pytest.fixture
def rows():
    generator = np.random.default_rng(0)
    return generator.integers(0, 3, (30, 2)).astype(float), generator.integers(0, 2, 30), np.ones(30)


def test_repetition_and_weights_are_the_same(rows):
    x, y, _ = rows
    weights = np.arange(30.0) % 4
    kept = weights > 0
    weighted = merge_rows(x[kept], y[kept], weights[kept])
    index = np.repeat(np.arange(30), weights.astype(int))
    repeated = merge_rows(x[index], y[index], np.ones(len(index)))
    for one, other in zip(weighted, repeated, strict=True):
        np.testing.assert_array_equal(one, other)
    assert weighted[2].sum() == weights.sum()


def test_rows_with_different_targets_stay_apart():
    x, y, weights = merge_rows(np.zeros((3, 1)), np.array([1, 0, 1]), np.ones(3))
    assert x.shape == (2, 1) and y.tolist() == [0, 1] and weights.tolist() == [1, 2]


def test_repeating_undoes_merging(rows):
    merged = merge_rows(*rows)
    x, y, weights = repeat_rows(*merged, "laplace")
    assert len(x) == 30 and (weights == 1).all()
    np.testing.assert_array_equal(np.sort(x, 0), np.sort(rows[0], 0))
    assert sorted(y.tolist()) == sorted(rows[1].tolist())


def test_the_scaler_is_that_of_repeated_rows(rows):
    x = np.column_stack([rows[0], np.full(30, 0.1)])
    weights = np.arange(1.0, 31.0)
    scaler = Scaler.learn(x, weights)
    repeated = np.repeat(x, weights.astype(int), axis=0)
    np.testing.assert_allclose(scaler.mean, repeated.mean(0))
    np.testing.assert_allclose(scaler.std[:2], repeated[:, :2].std(0))
    assert scaler.std[2] == 1 and np.isfinite(scaler.transform(x)).all()
