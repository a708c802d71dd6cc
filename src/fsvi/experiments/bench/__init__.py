"""The benchmark: what training steps and predictions cost, beside those of plain training."""

from fsvi.experiments.bench.run import run_bench

__all__ = ["run_bench"]
