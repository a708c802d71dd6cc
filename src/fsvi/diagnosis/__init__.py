"""Find problems with the uncertainty of a trained method, and which setting to change."""

from fsvi.diagnosis.diagnose import diagnose
from fsvi.diagnosis.findings import Diagnosis, Finding

__all__ = ["Diagnosis", "Finding", "diagnose"]
