"""Calibration on held-out rows: scaling of predictions, conformal sets and intervals, and referral to an expert."""

from fsvi.calibration.calibrated import Calibrated, Calibration
from fsvi.calibration.conformal import APS, LAC, ConformalIntervals, ConformalSets, Intervals, rows_needed
from fsvi.calibration.referral import IntervalReferral, Referral, SetReferral
from fsvi.calibration.scaling import Rescaling, TemperatureScaling, VarianceScaling, VectorScaling

__all__ = [
    "APS",
    "LAC",
    "Calibrated",
    "Calibration",
    "ConformalIntervals",
    "ConformalSets",
    "IntervalReferral",
    "Intervals",
    "Referral",
    "Rescaling",
    "SetReferral",
    "TemperatureScaling",
    "VarianceScaling",
    "VectorScaling",
    "rows_needed",
]
