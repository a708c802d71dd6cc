"""The benchmark: the cost of training steps and predictions, compared with plain training."""

from fsvi.experiments.bench.benchmark import run_bench

__all__ = ["run_bench"]
