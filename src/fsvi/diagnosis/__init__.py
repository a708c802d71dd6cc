"""Can I trust this model? One set of checks for methods, for models of tables and for new rows."""

from fsvi.diagnosis.diagnose import diagnose
from fsvi.diagnosis.findings import Diagnosis, Finding
from fsvi.diagnosis.report import write_report

__all__ = ["Diagnosis", "Finding", "diagnose", "write_report"]
