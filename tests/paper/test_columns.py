"""Columns find their number in results, also in those of earlier versions."""

import math

import numpy as np
import pytest
from scipy import stats

from made_results import make_result
from paper.columns import Column, MeanOverSeeds, Metric, detection

OLD_DUQ = {"auroc_mnist": 0.695, "auroc_entropy_mnist": 0.695, "auroc_own_mnist": 0.994}


def test_detection_is_by_the_score_of_the_methods_authors():
    column = detection("fashion-mnist", "mnist", "MNIST")
    results = [make_result("duq", metrics=OLD_DUQ)]
    assert column.mean(results).mean == pytest.approx(99.4)
    assert column.mean_by_entropy(results).mean == pytest.approx(69.5)


def test_a_result_with_the_entropy_alone_is_still_read():
    column = detection("fashion-mnist", "mnist", "MNIST")
    assert column.value(make_result(metrics={"auroc_mnist": 0.7})) == pytest.approx(70.0)


def test_a_metric_that_was_no_number_is_missing():
    assert Column("fashion-mnist", "nll", Metric("NLL", "")).mean([make_result(metrics={"nll": None})]) is None


def test_results_of_other_tasks_do_not_count():
    column = Column("snelson", "rmse", Metric("RMSE", "", 1))
    results = [make_result(task=task, metrics={"rmse": value}) for task, value in (("snelson", 1.0), ("oat1d", 9.0))]
    assert column.show(column.mean(results)) == "1.0"
    assert column.mean_by_entropy(results) is None


def test_mean_and_standard_error_are_scipys():
    values = np.random.default_rng(0).normal(size=7)
    found = MeanOverSeeds.of(values.tolist())
    assert found.mean == pytest.approx(values.mean())
    assert found.error == pytest.approx(stats.sem(values))
    assert found.count == 7


def test_one_seed_has_no_error_and_infinity_no_warning():
    assert MeanOverSeeds.of([0.5]) == MeanOverSeeds(0.5, None, 1)
    assert math.isnan(MeanOverSeeds.of([math.inf, 1.0]).error)
