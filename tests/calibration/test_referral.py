import json
import math

import pytest
import scipy.stats
import torch

from calibration_cases import class_predictions, real_predictions
from fsvi.calibration import (
    LAC,
    Calibration,
    ConformalIntervals,
    IntervalReferral,
    Referral,
    SetReferral,
    TemperatureScaling,
)
from fsvi.errors import InvalidInputError
from fsvi.likelihoods import CategoricalPredictive


def draw(num, generator, risk=lambda u: 0.5 * u**2):
    """Predictions of two classes with uniform probability of the first, 1/2..1, and labels wrong with chance risk(u).

    u, uniform on 0..1, grows with the entropy.
    """
    u = torch.rand(num, generator=generator, dtype=torch.float64)
    probability = 1 - u / 2
    wrong = torch.rand(num, generator=generator) < risk(u)
    return CategoricalPredictive(torch.stack([probability, 1 - probability], -1).log()[None]), wrong.long()


def kept_risk(threshold, risk):
    """The true risk among inputs whose entropy is at most the threshold."""
    u = torch.linspace(0, 1, 20_001, dtype=torch.float64)
    entropy = CategoricalPredictive(torch.stack([1 - u / 2, u / 2], -1).log()[None]).entropy()
    return float(risk(u[entropy <= threshold]).mean())


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


RISKS = {
    "smooth": lambda u: 0.5 * u**2,
    "on the edge": lambda u: torch.full_like(u, 0.0501),
    "not monotone": lambda u: torch.where(u < 0.3, 0.01, torch.where(u < 0.5, 0.3, 0.02)),
}


@pytest.mark.parametrize("name", RISKS)
def test_the_promise_is_kept_with_the_stated_confidence(name, generator):
    """Of many chosen thresholds, at most 1 − confidence keep too many errors, up to four standard errors."""
    runs, broken = 500, 0
    for _ in range(runs):
        try:
            chosen = Referral(*draw(600, generator, RISKS[name]))
        except InvalidInputError:
            continue
        broken += kept_risk(chosen.threshold, RISKS[name]) > 0.05
    assert broken / runs <= 0.1 + 4 * math.sqrt(0.1 * 0.9 / runs)


def test_it_keeps_nearly_all_that_it_could(generator):
    """With risk u²/2 the share that may be kept is √0.3: the mean of u²/2 below it is 0.05."""
    kept = [1 - Referral(*draw(4000, generator)).referred for _ in range(5)]
    assert 0.45 < sum(kept) / 5 < math.sqrt(0.3) + 0.01


def test_the_test_is_the_exact_binomial_one():
    """120 certain answers, the pilot's 24 right: among the 96 others as many may be wrong as the bound allows."""
    order = torch.randperm(120, generator=torch.Generator().manual_seed(0))
    p = CategoricalPredictive(torch.tensor([5.0, 0.0]).expand(1, 120, 2))
    allowed = max(k for k in range(96) if scipy.stats.binom.cdf(k, 96, 0.05) <= 0.1)
    wrong = torch.zeros(120).long()
    wrong[order[24 : 24 + allowed]] = 1
    referral = Referral(p, wrong)
    assert referral.referred == 0 and referral.kept_accuracy == pytest.approx(1 - allowed / 96)
    wrong[order[24 + allowed]] = 1
    with pytest.raises(InvalidInputError, match="threshold"):
        Referral(p, wrong)


def test_it_is_written_down_as_plain_numbers(generator):
    p, y = draw(1000, generator)
    referral = Referral(p, y, confidence=0.8)
    written = json.loads(json.dumps(referral.to_dict()))
    assert written == vars(referral) and written["confidence"] == 0.8
    assert torch.equal(p.entropy() <= written["threshold"], referral.decide(p))


# By conformal sets and intervals


def test_sets_of_one_class_are_kept_and_few_of_all_are_kept_and_wrong():
    p, y = class_predictions(1000)
    fresh, labels = class_predictions(20_000, seed=1)
    referral = SetReferral(Calibration([TemperatureScaling(), LAC()]).fit(p, y), alpha=0.1)
    sets, keep = referral.calibration.sets(fresh, 0.1), referral.decide(fresh)
    assert torch.equal(keep, sets.sum(1) == 1) and 0.1 < keep.double().mean() < 0.9
    wrong = keep & ~sets.gather(1, labels[:, None]).squeeze(1)
    # Given the 700 rows of the conformal step, coverage has a standard deviation of about √(0.1·0.9/701) = 0.011.
    assert 0 < wrong.double().mean() < 0.1 + 4 * 0.011
    pairs = SetReferral(referral.calibration, max_size=2).decide(fresh)
    assert torch.equal(pairs, (sets.sum(1) == 1) | (sets.sum(1) == 2))


def test_an_empty_set_is_referred():
    """Held-out rows are sure and right; a new row that is sure of nothing has no class that conforms."""
    sure = CategoricalPredictive(
        torch.linspace(5, 6, 50, dtype=torch.float64)[None, :, None] * torch.tensor([1.0, 0.0])
    )
    calibration = Calibration([LAC()]).fit(sure, torch.zeros(50).long())
    new = CategoricalPredictive(torch.tensor([[[0.0, 0.0], [7.0, 0.0]]]))
    assert calibration.sets(new).sum(1).tolist() == [0, 1]
    assert SetReferral(calibration).decide(new).tolist() == [False, True]


def test_narrow_intervals_are_kept():
    p, y = real_predictions(500, targets=2)
    fresh, _ = real_predictions(500, seed=1, targets=2)
    calibration = Calibration([ConformalIntervals()]).fit(p, y)
    width = calibration.intervals(fresh, 0.2).width
    limit = float(width.amax(1).median())
    keep = IntervalReferral(calibration, limit, alpha=0.2).decide(fresh)
    assert torch.equal(keep, width.amax(1) <= limit) and 0.4 < keep.double().mean() < 0.6
