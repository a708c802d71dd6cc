"""Calibration on held-out rows: scaling of predictions, conformal sets and intervals, and referral to an expert.

Examples:
    >>> from fsvi.calibration import LAC, Calibration, TemperatureScaling
    >>> p, y = fsvi.likelihoods.CategoricalPredictive(torch.randn(1, 200, 3)), torch.arange(200) % 3
    >>> calibration = Calibration([TemperatureScaling(), LAC()]).fit(p, y)
    >>> calibration.sets(p, alpha=0.1).shape  # True where the class is in the set
    torch.Size([200, 3])
"""

from fsvi.calibration.calibrated import Calibrated, Calibration
from fsvi.calibration.conformal import APS, LAC, Conformal, ConformalIntervals, ConformalSets, Intervals, rows_needed
from fsvi.calibration.referral import IntervalReferral, Referral, SetReferral
from fsvi.calibration.scaling import Rescaling, TemperatureScaling, VarianceScaling

__all__ = [
    "APS",
    "LAC",
    "Calibrated",
    "Calibration",
    "Conformal",
    "ConformalIntervals",
    "ConformalSets",
    "IntervalReferral",
    "Intervals",
    "Referral",
    "Rescaling",
    "SetReferral",
    "TemperatureScaling",
    "VarianceScaling",
    "rows_needed",
]
