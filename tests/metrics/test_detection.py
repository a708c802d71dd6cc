import math

import pytest
import torch

from fsvi.likelihoods import CategoricalPredictive
from fsvi.methods.duq import KernelPredictive
from fsvi.metrics import auroc, evaluate_ood, ood, uncertainty


@pytest.fixture(params=["distinct", "tied"])
def scores(request):
    """Scores in and out of distribution."""
    inside, outside = torch.randn(60).double(), 0.7 + torch.randn(90).double()
    return (inside, outside) if request.param == "distinct" else (inside.round(), outside.round())


def test_against_torchmetrics(scores):
    from torchmetrics.functional.classification import binary_auroc, binary_average_precision  # takes seconds

    both, is_out = torch.cat(scores).sigmoid(), torch.tensor([0] * 60 + [1] * 90)
    found = ood(*scores)
    assert found.auroc == pytest.approx(float(binary_auroc(both, is_out)), rel=1e-6) == auroc(is_out, both)
    assert found.aupr == pytest.approx(float(binary_average_precision(both, is_out)), rel=1e-6)
    assert found.aupr_in == pytest.approx(float(binary_average_precision(1 - both, 1 - is_out)), rel=1e-6)
    assert 0.6 < found.auroc < 0.8


def test_fpr95_is_what_passes_where_95_percent_of_the_known_do(scores):
    inside, outside = scores
    threshold = inside.sort().values[math.ceil(0.95 * 60) - 1]
    assert ood(*scores).fpr95 == pytest.approx(float((outside <= threshold).double().mean()))


def test_auroc_is_the_chance_of_the_right_order_ties_counting_half(scores):
    inside, outside = scores
    order = (outside[:, None] > inside).double() + 0.5 * (outside[:, None] == inside).double()
    assert ood(*scores).auroc == pytest.approx(float(order.mean()))


def test_measures_of_uncertainty():
    p = CategoricalPredictive(torch.randn(4, 6, 3))
    for kind in ("entropy", "expected_entropy", "mutual_information"):
        assert torch.equal(uncertainty(p, kind), getattr(p, kind)())
    kernels = KernelPredictive(-torch.rand(1, 6, 3))
    assert torch.equal(uncertainty(kernels, "own"), kernels.score)
    assert not torch.equal(uncertainty(kernels, "own"), uncertainty(kernels))


def test_ood():
    inside, outside = CategoricalPredictive(3 * torch.randn(3, 40, 4)), CategoricalPredictive(torch.randn(3, 30, 4))
    found = evaluate_ood(inside, outside)
    kinds = ("entropy", "expected_entropy", "mutual_information", "own")
    assert set(found) == {f"{name}_{kind}" for name in ("auroc", "aupr", "aupr_in", "fpr95") for kind in kinds}
    for kind in kinds[:3]:
        expected = ood(getattr(inside, kind)(), getattr(outside, kind)())
        assert found[f"auroc_{kind}"] == expected.auroc and found[f"fpr95_{kind}"] == expected.fpr95


def test_one_network_knows_nothing_of_what_it_does_not_know():
    """A single draw has no mutual information, so that it cannot tell one input from another."""
    inside, outside = CategoricalPredictive(5 * torch.randn(1, 500, 10)), CategoricalPredictive(torch.randn(1, 500, 10))
    found = evaluate_ood(inside, outside)
    assert found["auroc_mutual_information"] == 0.5 and found["auroc_entropy"] > 0.9
