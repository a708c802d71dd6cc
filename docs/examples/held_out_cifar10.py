"""FSVI on CIFAR-10 at `desk` with several learning rates: 45,000 images, measured on the other 5,000.

    FSVI_DATA=... python docs/examples/held_out_cifar10.py studies/cifar10.desk.rates.json WORK_FOLDER

MAP trains for eight epochs (25 to 50 minutes on one core that has bfloat16 in hardware), and every row starts from its
network (10 to 20 minutes). Rows in the file are not made again; MAP resumes from WORK_FOLDER. No test set is used:
the images of other kinds are training images of MNIST and FashionMNIST, enlarged and given random colors.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import fsvi
from fsvi import metrics
from paper import data
from paper.experiment import Compute, Experiment, Order
from paper.tasks.cifar10 import NAME
from paper.tasks.images import predict
from paper.tasks.registry import TASKS
from paper.tuning import held_out

EPOCHS = 8
OTHERS = 5_000
RATES = {"rate 1.25e-4": 1.25e-4, "rate 2.5e-4": 2.5e-4}


def colored(name: str) -> Tensor:
    """Gray training images of a dataset as 32×32 color images; black and white become two random colors."""
    generator = torch.Generator().manual_seed(0)
    gray = data.load(name, "train").x[:OTHERS].float() / 255
    gray = torch.nn.functional.interpolate(gray.reshape(-1, 1, 28, 28), 32, mode="bilinear")
    low, high = torch.rand(2, OTHERS, 3, 1, 1, generator=generator)
    return (255 * (low + (high - low) * gray)).round().to(torch.uint8)


def held_out_experiment(method: str, **fit_settings: Any) -> tuple[Experiment, tuple[Tensor, Tensor]]:
    """The recipe on 45,000 images, and the others."""
    context = "corrupted" if method == "fsvi" else None
    order = Order(NAME, method, "desk", context=context, fit_settings=fit_settings)
    return held_out(TASKS[NAME].experiment(order).computed(Compute(precision="bf16")), order.seed)


def measure(method: fsvi.Method, x: Tensor, y: Tensor, others: dict[str, Tensor]) -> dict[str, float]:
    """Scores on held-out images, and how well images of other kinds are detected."""
    p = predict(method, x, num_samples=5)
    found = {"accuracy": metrics.accuracy(p, y), "nll": metrics.nll(p, y), "ece": metrics.ece(p, y)}
    for name, images in others.items():
        found[f"auroc_{name}"] = metrics.evaluate_ood(p, predict(method, images, num_samples=5))["auroc_entropy"]
    return {name: round(float(value), 5) for name, value in found.items()}


def main(path: Path, work: Path) -> None:
    """Make the rows that are missing, and write the file after each of them."""
    rows = json.loads(path.read_text()) if path.exists() else {}
    normalize = data.Normalize.of(data.load(NAME, "train").x)
    others = {name: normalize(colored(name)) for name in ("mnist", "fashion-mnist")}

    def keep(name: str, method: fsvi.Method, history: fsvi.training.History, rest: tuple[Tensor, Tensor]) -> None:
        rows[name] = {**measure(method, *rest, others), "seconds": round(history.seconds)}
        path.write_text(json.dumps(rows, indent=1) + "\n")
        print(name, rows[name], flush=True)

    experiment, rest = held_out_experiment("map", epochs=EPOCHS)
    start = experiment.build(seed=0)
    history = experiment.train(start, seed=0, checkpoint=work / "map", resume=True, progress=False)
    if "MAP" not in rows:
        keep("MAP", start, history, rest)
    for name, rate in RATES.items():
        if name not in rows:
            experiment, rest = held_out_experiment("fsvi", lr=rate)
            method = experiment.build(seed=0, started=[start])
            keep(name, method, experiment.train(method, seed=0, progress=False), rest)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
