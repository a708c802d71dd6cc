"""scikit-learn's front: `FSVIClassifier` and `FSVIRegressor`, with any method behind them."""

from fsvi.estimators.classifier import FSVIClassifier
from fsvi.estimators.regressor import FSVIRegressor

__all__ = ["FSVIClassifier", "FSVIRegressor"]
