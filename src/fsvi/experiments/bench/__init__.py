"""The benchmark: what training steps and predictions cost, beside those of plain training."""

from fsvi.experiments.bench.benchmark import run_bench

__all__ = ["run_bench"]
