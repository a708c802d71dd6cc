import math

import pytest
import torch

from fsvi import metrics
from fsvi.data import Standardize
from fsvi.errors import InvalidInputError
from fsvi.likelihoods import CategoricalPredictive, GaussianPredictive
from fsvi.metrics import evaluate_classification, evaluate_ood, evaluate_regression


def test_classification():
    p, y = CategoricalPredictive(torch.randn(3, 40, 3)), torch.arange(40) % 3
    found = evaluate_classification(p, y)
    assert list(found) == ["accuracy", "nll", "brier", "ece_10", "ece_15", "ece_adaptive", "aurc"]
    assert found["ece_10"] == metrics.ece(p, y, bins=10) != found["ece_15"] == metrics.ece(p, y)
    assert found["ece_adaptive"] == metrics.ece(p, y, adaptive=True)
    assert found["aurc"] == metrics.aurc(p, y)


def test_two_classes_also_have_auroc():
    p, y = CategoricalPredictive(torch.randn(3, 40, 2)), torch.arange(40) % 2
    assert evaluate_classification(p, y)["auroc"] == pytest.approx(metrics.auroc(y, p.mean[:, 1]))
    assert math.isnan(evaluate_classification(p, torch.zeros(40).long())["auroc"])


def test_ood():
    inside, outside = CategoricalPredictive(3 * torch.randn(3, 40, 4)), CategoricalPredictive(torch.randn(3, 30, 4))
    found = evaluate_ood(inside, outside)
    kinds = ("entropy", "expected_entropy", "mutual_information", "own")
    assert set(found) == {f"{name}_{kind}" for name in ("auroc", "aupr", "aupr_in", "fpr95") for kind in kinds}
    for kind in kinds[:3]:
        expected = metrics.ood(getattr(inside, kind)(), getattr(outside, kind)())
        assert found[f"auroc_{kind}"] == expected.auroc and found[f"fpr95_{kind}"] == expected.fpr95


def test_one_network_knows_nothing_of_what_it_does_not_know():
    """A single draw has no mutual information, so that it cannot tell one input from another."""
    inside, outside = CategoricalPredictive(5 * torch.randn(1, 500, 10)), CategoricalPredictive(torch.randn(1, 500, 10))
    found = evaluate_ood(inside, outside)
    assert found["auroc_mutual_information"] == 0.5 and found["auroc_entropy"] > 0.9


def test_regression():
    p = GaussianPredictive(torch.randn(3, 20, 1), torch.ones(1))
    scale = Standardize(2.0, 3.0)
    y = scale.inverse(torch.randn(20, 1))
    found = evaluate_regression(p, y, scale)
    original = metrics.unstandardize(p, scale)
    assert found == evaluate_regression(original, y)
    assert list(found) == ["rmse", "log_likelihood", "crps", "coverage_50", "coverage_90", "coverage_95"]
    assert found["rmse"] == metrics.rmse(original, y) and found["coverage_90"] == metrics.coverage(original, y, 0.9)


def test_a_prediction_of_another_kind():
    p = GaussianPredictive(torch.randn(3, 20, 1), torch.ones(1))
    with pytest.raises(InvalidInputError):
        evaluate_classification(p, torch.zeros(20).long())
    with pytest.raises(InvalidInputError):
        evaluate_ood(p, p)
