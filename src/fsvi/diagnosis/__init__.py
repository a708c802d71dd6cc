"""What is wrong with a trained method's uncertainty, if anything, and which setting to change."""

from fsvi.diagnosis.diagnose import diagnose
from fsvi.diagnosis.findings import Diagnosis, Finding

__all__ = ["Diagnosis", "Finding", "diagnose"]
