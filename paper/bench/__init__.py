"""The benchmark: the cost of training steps and predictions, compared with plain PyTorch and with other libraries."""

from paper.bench.costs import run_bench
from paper.bench.tables import run_table_bench

__all__ = ["run_bench", "run_table_bench"]
