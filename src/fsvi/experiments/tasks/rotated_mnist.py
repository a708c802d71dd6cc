"""MNIST digits turned further and further: the paper's figure of Brier score and entropy against rotation."""

from __future__ import annotations

from fsvi import data
from fsvi.data import Normalize
from fsvi.experiments.experiment import Experiment, Order, Outcome
from fsvi.experiments.tasks.images import (
    ON_THE_CNN,
    Effort,
    average,
    columns,
    context_notes,
    make_classifier,
    make_context,
    measure,
    predict,
    score,
)
from fsvi.methods import Method
from fsvi.networks import cnn

DEGREES = tuple(range(0, 181, 15))
_FAR = 45
"""Beyond so many degrees a digit counts as far from the training data."""

_TURNING = ("corrupted",)
"""Contexts that hold turned training digits, which here are the test."""

_EFFORTS = {
    "paper": Effort(None, None, epochs=30, num_samples=10),
    "quick": Effort(12_000, 2_000, epochs=10, num_samples=10),
    "smoke": Effort(256, 64, epochs=1, num_samples=2),
}

_SETTINGS = {"fsvi": ON_THE_CNN}
_DROPOUT = 0.25
"""Of the dense layer, for all methods."""


def rotated_mnist(order: Order) -> Experiment:
    """The CNN of Table 1 on MNIST, Adam with a cosine schedule, 30 epochs; test digits turned by 0° to 180°.

    `fsvi run rotated-mnist fsvi`, and the same with `map`, `mfvi` and `mc-dropout`, make the figure; each takes about
    half an hour on two cores, `--profile quick` a few minutes. In the paper FSVI's Brier score rises the least, and its
    entropy the most. The paper does not name the context: it is KMNIST here, as in Table 1.

    `brier_45plus` and the like are means over the angles beyond 45°; `entropy_rise` is the entropy there less that of
    upright digits.
    """
    effort = _EFFORTS[order.profile]
    train = data.load("mnist", "train")
    normalize = Normalize.of(train.x)
    context, sources = make_context(order.context, normalize, _TURNING)
    make = make_classifier(order, lambda: cnn(dropout=_DROPOUT), context, _SETTINGS)
    x, y = normalize(train.x[: effort.images]), train.y[: effort.images]

    def evaluate(method: Method) -> Outcome:
        test = data.load("mnist", "test")
        digits, labels = test.x[: effort.test_images], test.y[: effort.test_images]
        turned = (normalize(data.rotate(digits, degrees)) for degrees in DEGREES)
        rows = [score(predict(method, images, effort.num_samples), labels) for images in turned]
        found, curves = measure(method, normalize(digits), labels, {}, effort.num_samples)
        rotation = {"degrees": list(DEGREES), **columns(rows)}
        return Outcome({**found, **_summarise(rows)}, {**curves, "rotation": rotation}, [test])

    notes = [*effort.notes(), *context_notes(order.context), f"dropout {_DROPOUT}"]
    fit_settings = {"epochs": effort.epochs, "batch_size": 128, "lr": 1e-3, **order.fit_settings}
    return Experiment(make, (x, y), fit_settings, evaluate, [train, *sources], notes, tests=("mnist",))


def _summarise(rows: list[dict[str, float]]) -> dict[str, float]:
    far = average(row for degrees, row in zip(DEGREES, rows, strict=True) if degrees > _FAR)
    found = {f"{name}_{_FAR}plus": value for name, value in far.items()}
    return {**found, "entropy_rise": far["entropy"] - rows[0]["entropy"]}
