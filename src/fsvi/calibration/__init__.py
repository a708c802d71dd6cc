"""Calibration on held-out rows: scaling of predictions, and conformal sets and intervals with guaranteed coverage."""

from fsvi.calibration.calibrated import Calibrated
from fsvi.calibration.calibration import Calibration
from fsvi.calibration.conformal import rows_needed
from fsvi.calibration.intervals import ConformalIntervals, Intervals
from fsvi.calibration.scaling import Scaling, TemperatureScaling, VarianceScaling, VectorScaling
from fsvi.calibration.sets import APS, LAC, ConformalSets

__all__ = [
    "APS",
    "LAC",
    "Calibrated",
    "Calibration",
    "ConformalIntervals",
    "ConformalSets",
    "Intervals",
    "Scaling",
    "TemperatureScaling",
    "VarianceScaling",
    "VectorScaling",
    "rows_needed",
]
