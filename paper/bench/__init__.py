"""The benchmark: the cost of training steps and predictions, compared with plain PyTorch and with other libraries."""

from paper.bench.benchmark import run_bench
from paper.bench.peer_costs import run_peer_bench
from paper.bench.tables import run_table_bench

__all__ = ["run_bench", "run_peer_bench", "run_table_bench"]
