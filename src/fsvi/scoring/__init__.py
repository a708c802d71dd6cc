"""Predictions for many files: streamed in constant memory, written atomically, resumed after an interruption."""

from fsvi.scoring.files import ScoringReport, predict_files

__all__ = ["ScoringReport", "predict_files"]
