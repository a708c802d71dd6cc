"""The benchmark: the cost of training steps and predictions, compared with plain PyTorch and with other libraries."""

from fsvi.experiments.bench.benchmark import run_bench
from fsvi.experiments.bench.peer_costs import run_peer_bench
from fsvi.experiments.bench.tables import run_table_bench

__all__ = ["run_bench", "run_peer_bench", "run_table_bench"]
