"""Training in bfloat16 next to float32: FashionMNIST at the quick profile, MAP and FSVI, three seeds.

    FSVI_DATA=... python docs/examples/mixed_precision_fashion_mnist.py runs

Each of the twelve runs takes a few minutes on one core. Existing results in the folder are reused.
"""

import math
import statistics
import sys
from pathlib import Path

from paper.experiment import Order
from paper.records import Result
from paper.runs import run

SEEDS = range(3)
METHODS = {"map": None, "fsvi": "kmnist"}
PRECISIONS = {"float32": {}, "bf16": {"precision": "bf16"}}
METRICS = ("accuracy", "nll", "ece_15", "auroc_own_mnist", "auroc_own_notmnist")


def measured(method: str, precision: str, seed: int, out: Path) -> Result:
    """One run; all numbers of its history are finite."""
    settings = PRECISIONS[precision]
    order = Order("fashion-mnist", method, "quick", seed, METHODS[method], fit_settings=settings)
    result = run(order, out / precision, progress=False)
    assert all(math.isfinite(value) for values in result.history.values() for value in values)
    return result


out = Path(sys.argv[1])
found: dict[tuple[str, str], list[Result]] = {(method, name): [] for method in METHODS for name in PRECISIONS}
for seed in SEEDS:
    for method, precision in found:
        found[method, precision].append(measured(method, precision, seed, out))
for (method, precision), results in found.items():
    columns = []
    for name in METRICS:
        values = [result.metrics[name] for result in results]
        columns.append(f"{name} {statistics.mean(values):.4f} ± {statistics.stdev(values):.4f}")
    print(f"{method:5} {precision:8} " + "  ".join(columns))
