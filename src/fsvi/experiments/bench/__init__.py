"""The benchmark: what training steps and predictions cost, beside those of plain training."""

from fsvi.experiments.bench.run import run_bench
from fsvi.experiments.bench.tables import run_table_bench

__all__ = ["run_bench", "run_table_bench"]
