import math

import pytest
import sklearn.metrics
import torch

from fsvi.errors import InvalidInputError
from fsvi.likelihoods import CategoricalPredictive
from fsvi.methods.duq import KernelPredictive
from fsvi.metrics import accuracy, aurc, referral_curve

# Four inputs, the least certain last; the second and the fourth are wrong.
P = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]])
Y = torch.tensor([0, 1, 1, 1])


@pytest.fixture
def predictions():
    logits = torch.randn(80, 2).double()
    return (2 * logits).softmax(-1), torch.multinomial(logits.softmax(-1), 1).squeeze(1)


def brute_force(p, y, scores, rate):
    """Accuracy and AUROC of the most certain inputs, where the rate keeps a whole number of them."""
    kept = scores.argsort()[: round((1 - rate) * len(y))]
    return accuracy(p[kept], y[kept]), sklearn.metrics.roc_auc_score(y[kept], p[kept, 1])


def test_curve_by_hand():
    found = referral_curve(P, Y, rates=[0, 0.25, 0.5, 0.75, 1])
    torch.testing.assert_close(found.accuracy[:4], torch.tensor([0.5, 2 / 3, 0.5, 1.0]).double())
    assert found.accuracy[4].isnan()
    assert found.auroc[:3].tolist() == [1, 1, 1] and found.auroc[3:].isnan().all()


def test_curve_against_brute_force(predictions):
    p, y = predictions
    scores = torch.rand(80).double()
    rates = [0.0, 0.25, 0.5, 0.8]
    found = referral_curve(p, y, scores, rates)
    expected = torch.tensor([brute_force(p, y, scores, rate) for rate in rates]).double()
    torch.testing.assert_close(torch.stack([found.accuracy, found.auroc], 1), expected)


def test_whole_range_by_default(predictions):
    found = referral_curve(*predictions)
    assert found.rate.tolist() == [k / 100 for k in range(101)]
    assert found.accuracy[0] == accuracy(*predictions) and found.accuracy[100].isnan()


def test_ties_are_averaged_over():
    """With all scores equal, whom to keep is chance: the accuracy expected is that of all."""
    found = referral_curve(P, Y, torch.zeros(4), rates=[0, 0.3, 0.5, 0.9])
    torch.testing.assert_close(found.accuracy, torch.full((4,), 0.5).double())
    assert found.auroc.tolist() == [1] * 4
    some = referral_curve(P, Y, [0, 1, 1, 1], rates=[0.5])
    torch.testing.assert_close(some.accuracy, torch.tensor([(1 + 1 / 3) / 2]).double())


def test_rounding_keeps_no_further_input():
    """(1 − 0.7) · 10 is a little more than 3 in floating point; the fourth input alone has the other class."""
    p, y = torch.tensor([[0.4, 0.6]]).repeat(10, 1), torch.tensor([1, 1, 1, *[0] * 7])
    found = referral_curve(p, y, torch.arange(10), rates=[0.7])
    assert found.auroc.isnan().all() and found.accuracy.tolist() == [1.0]


def test_more_classes_have_no_auroc():
    assert referral_curve(torch.eye(3), torch.arange(3)).auroc is None


def test_one_class_only():
    found = referral_curve(P, torch.ones(4).long(), rates=[0.0])
    assert found.auroc.isnan().all() and found.accuracy.tolist() == [0.25]


def test_aurc_by_hand():
    assert aurc(P, Y) == pytest.approx((0 / 1 + 1 / 2 + 1 / 3 + 2 / 4) / 4)
    assert aurc(P, Y, torch.zeros(4)) == pytest.approx(0.5)
    assert aurc(P, Y, [0, 1, 1, 1]) == pytest.approx((0 + (2 / 3) / 2 + (4 / 3) / 3 + 2 / 4) / 4)


def test_aurc_is_the_area_over_the_referral_curve(predictions):
    rates = [k / 80 for k in range(80)]
    area = referral_curve(*predictions, rates=rates).accuracy.mean()
    assert aurc(*predictions) == pytest.approx(1 - float(area))


def test_expected_aurc_with_ties_is_the_mean_over_orders(predictions):
    p, y = predictions
    tied = (4 * torch.rand(80)).floor().double()
    values = torch.tensor([aurc(p, y, tied + 1e-3 * torch.rand(80)) for _ in range(300)])
    assert abs(float(values.mean()) - aurc(p, y, tied)) < 4 * float(values.std()) / math.sqrt(300)


@pytest.mark.parametrize(("label", "risk"), [(0, 0.0), (1, 1.0)])
def test_one_input(label, risk):
    assert aurc(P[:1], [label]) == risk


def test_uncertainty_of_a_prediction_is_its_own():
    p = KernelPredictive(-3 * torch.rand(1, 50, 3))
    y = torch.arange(50) % 3
    assert aurc(p, y) == aurc(p, y, p.score) != aurc(p, y, p.entropy())
    q = CategoricalPredictive(torch.randn(1, 50, 3))
    assert aurc(q, y) == pytest.approx(aurc(q.mean, y))


def test_bad_input():
    with pytest.raises(InvalidInputError, match="3 uncertainties"):
        aurc(P, Y, torch.zeros(3))
    with pytest.raises(InvalidInputError, match=r"uncertainty.*NaN"):
        referral_curve(P, Y, [0, 1, 2, math.nan])
    with pytest.raises(InvalidInputError, match=r"rates=\[50\]"):
        referral_curve(P, Y, rates=[50])
