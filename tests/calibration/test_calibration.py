import pytest
import torch

from calibration_cases import LEVELS, assert_covers, class_predictions, real_predictions
from fsvi.calibration import (
    APS,
    LAC,
    Calibration,
    ConformalIntervals,
    IntervalReferral,
    Referral,
    SetReferral,
    TemperatureScaling,
    VarianceScaling,
)
from fsvi.errors import FSVIError
from fsvi.serialization import Configurable, read_tree, write_tree

CLASSES = {
    "temperature": lambda: [TemperatureScaling()],
    "lac": lambda: [LAC()],
    "temperature, aps": lambda: [TemperatureScaling(), APS(randomized=True)],
    "temperature, lac": lambda: [TemperatureScaling(), LAC(nonempty=True)],
}
REAL = {
    "variance": lambda: [VarianceScaling()],
    "intervals": lambda: [ConformalIntervals()],
    "variance, intervals": lambda: [VarianceScaling(), ConformalIntervals()],
}


def test_scaling_and_conformal_get_rows_of_their_own():
    p, y = class_predictions(200)
    calibration = Calibration([TemperatureScaling(), LAC()], scaling_share=0.25).fit(p, y, seed=3)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(3))
    first, rest = order[:50], order[50:]
    scaling = TemperatureScaling().fit(p[first], y[first])
    assert calibration.steps[0].temperature == scaling.temperature
    expected = LAC().fit(scaling(p[rest]), y[rest])
    assert torch.equal(calibration.steps[1].scores, expected.scores)
    assert torch.equal(calibration.sets(p), expected.sets(scaling(p)))


class RoughTemperature(TemperatureScaling):
    """A temperature that depends on its rows as one that was searched would, but is fast to find."""

    def fit(self, p, y):
        self.temperature = float(1 - p.log_prob(y).mean())
        return self


@pytest.mark.parametrize("alpha", LEVELS)
@pytest.mark.parametrize(
    "steps",
    [[LAC()], [APS()], [APS(randomized=True)], [RoughTemperature(), LAC()], [ConformalIntervals()]],
    ids=["lac", "aps", "aps_randomized", "scaled", "intervals"],
)
def test_coverage_over_random_splits_is_what_theory_gives(steps, alpha):
    """A scaling sees only its own share of the held-out rows, so the bounds are those for the others."""
    num, shares, of_classes = 150, [], not isinstance(steps[0], ConformalIntervals)
    p, y = class_predictions(2 * num, 0, 1.5, classes=10) if of_classes else real_predictions(2 * num)
    for seed in range(200):
        order = torch.randperm(2 * num, generator=torch.Generator().manual_seed(seed))
        first, rest = order[:num], order[num:]
        calibration = Calibration(steps, scaling_share=0.2).fit(p[first], y[first], seed)
        if of_classes:
            shares.append(calibration.sets(p[rest], alpha).gather(1, y[rest, None]).double().mean())
        else:
            lower, upper = calibration.intervals(p[rest], alpha)
            shares.append(((lower <= y[rest]) & (y[rest] <= upper)).double().mean())
    assert_covers(torch.stack(shares), alpha, num if len(steps) == 1 else 120, num)


# Positions and missing targets


def test_positions_with_a_label_are_rows():
    p, y = class_predictions(60)
    y[::7] = -100
    p.ignore_index = -100
    rows = p[y != -100]
    shaped, labels = p.mapped(lambda values: values.unflatten(1, (12, 5))), y.reshape(12, 5)
    for steps in ([TemperatureScaling()], [LAC()], [APS(randomized=True)]):
        whole, pooled = Calibration(steps).fit(rows, y[y != -100]), Calibration(steps).fit(shaped, labels)
        torch.testing.assert_close(pooled(shaped).mean.flatten(0, 1), whole(p).mean)
        if whole.conformal is not None:
            assert torch.equal(pooled.sets(shaped).flatten(0, 1), whole.sets(p))
    kept = Referral(rows, y[y != -100], 0.4, 0.6)
    pooled = Referral(shaped, labels, 0.4, 0.6)
    assert pooled.to_dict() == kept.to_dict() and torch.equal(pooled.decide(shaped).flatten(), kept.decide(p))
    conformal = Calibration([LAC()]).fit(shaped, labels)
    assert torch.equal(SetReferral(conformal).decide(shaped).flatten(), SetReferral(conformal).decide(p))


def test_positions_with_a_target_are_rows():
    p, y = real_predictions(60, targets=2)
    y[::7] = torch.nan
    known = ~y.isnan().any(1)
    shaped = p.mapped(lambda values: values.unflatten(1, (12, 5)))
    for step in (VarianceScaling(), ConformalIntervals()):
        rows = Calibration([step]).fit(p[known], y[known])
        pooled = Calibration([type(step)()]).fit(shaped, y.reshape(12, 5, 2))
        torch.testing.assert_close(pooled(shaped).variance.flatten(0, 1), rows(p).variance)
    assert torch.equal(pooled.intervals(shaped).upper.flatten(0, 1), rows.intervals(p).upper)
    keep = IntervalReferral(pooled, 4.0).decide(shaped)
    assert torch.equal(keep.flatten(), IntervalReferral(rows, 4.0).decide(p)) and keep.shape == (12, 5)


# Files


@pytest.mark.parametrize("name", [*CLASSES, *REAL])
def test_written_and_read_without_pickle(name, tmp_path):
    data = class_predictions if name in CLASSES else real_predictions
    p, y = data(200)
    calibration = Calibration({**CLASSES, **REAL}[name](), scaling_share=0.4).fit(p, y)
    write_tree(tmp_path / "file", calibration.config(), "calibration")
    again = Configurable.from_config(read_tree(tmp_path / "file", "calibration"))
    fresh, _ = data(100, seed=1)
    assert isinstance(again, Calibration) and again.scaling_share == 0.4
    assert torch.equal(again(fresh).samples, calibration(fresh).samples)
    assert torch.equal(again(fresh).variance, calibration(fresh).variance)
    if isinstance(calibration.conformal, ConformalIntervals):
        assert torch.equal(again.intervals(fresh).upper, calibration.intervals(fresh).upper)
    elif calibration.conformal is not None:
        assert torch.equal(again.sets(fresh), calibration.sets(fresh))


def test_rows_that_do_not_fit_are_refused():
    p, y = class_predictions(20)
    with pytest.raises(FSVIError, match="20 predictions"):
        Calibration([TemperatureScaling(), LAC()]).fit(p, y[1:])
    with pytest.raises(FSVIError, match="classes"):
        Calibration([TemperatureScaling()]).fit(*real_predictions(20))
