"""Diabetic retinopathy from photographs of the retina: the paper's referral curves and ROC, in domain and shifted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.metrics import roc_curve
from torch import Tensor

from fsvi.functions.priors import Constant
from fsvi.methods import Method
from fsvi.networks import ResNet
from paper import data
from paper.columns import Column, TableLayout
from paper.columns import percent as percent_column
from paper.data import DataSplit, Normalize
from paper.data.store import content_hash
from paper.experiment import PROFILES, Experiment, Order, Outcome, thin
from paper.task import Section, Sweep, Task, TriangularSchedule
from paper.tasks.images import ImageEffort, evaluate_shift, image_experiment, predict
from paper.whitened_cnn import whitened_cnn

NAME = "retina"
SHIFTED = "aptos"
_NHS_FALSE_ALARMS = 0.2
"""The false positive rate that the British health service allows in screening, at a sensitivity of 85%."""

_IMITATED = "shifted images are the test images as an imitated poorer camera takes them, not APTOS: the same patients"
_STAND_IN_BATCH = 64
"""The largest batch if a small set of photographs replaces EyePACS, so that an epoch has enough steps."""


@dataclass(frozen=True, kw_only=True)
class _PhotographEffort(ImageEffort):
    """Adds the height and width of the photographs."""

    size: int = 128

    @property
    def differences(self) -> list[str]:
        """Also the size of the photographs."""
        return [*super().differences, f"photographs at {self.size}×{self.size}, the paper's are 512×512"]


_SGD = partial(torch.optim.SGD, momentum=0.9, nesterov=True)
_RANDOM = {"num_samples": 5, "stochastic": "last_layer"}
_FINE_TUNING: dict[str, dict[str, Any]] = {
    "fsvi": {"epochs": 5, "lr": 1e-3, "optimizer": "adam", "schedule": "cosine"},
    "mc-dropout": {"epochs": 5, "lr": 0.01, "schedule": "cosine"},
}
_PAPER = _PhotographEffort(
    *(None, None, 90, 5),
    network=lambda _: ResNet(50, num_classes=2, small_images=False),
    batch_size=256,
    fit={"lr": 0.02, "optimizer": _SGD},
    settings={"fsvi": {"prior": Constant(15.36), "num_context": 10, **_RANDOM}},
)
_SMALL = replace(_PAPER, network=lambda _: ResNet(num_classes=2, small_images=False))
_EFFORTS = {
    "paper": _PAPER,
    "desk": _PhotographEffort(
        *(None, None, 30, 5),
        network=lambda images: whitened_cnn(images, num_classes=2, widths=(8, 16, 32, 64, 128)),
        batch_size=32,
        shift=8,
        fit={"lr": 0.1, "optimizer": _SGD, "schedule": TriangularSchedule()},
        settings={
            "fsvi": {"prior": Constant(10.0), "num_context": 16, **_RANDOM},
            **{name: {"prior_variance": 0.1} for name in ("map", "mc-dropout")},
        },
        fine_tuning=_FINE_TUNING,
    ),
    "quick": replace(_SMALL, images=1_200, test_images=400, epochs=10, size=64, batch_size=32),
    "smoke": replace(_SMALL, images=32, test_images=24, epochs=1, num_samples=2, size=32, batch_size=16),
}


def retina(order: Order) -> Experiment:
    """ResNet-50 on EyePACS, sight-threatening or not; SGD with Nesterov momentum and a cosine schedule, 90 epochs.

    `run retina fsvi` is the paper's row: AUROC 88.5 and accuracy 89.8 on EyePACS, 94.1 and 87.6 on APTOS; with half of
    the photographs referred, 91.0 and 96.4, 90.6 and 90.7. Both datasets are available from Kaggle only, and need 20 GB
    of memory and a GPU.

    If EyePACS is absent, DeepDRiD's 1,200 training and 400 evaluation photographs, of different patients, replace it
    (about six hours on one processor core); it has a validation split of other patients, too. If APTOS is absent, an
    imitated poorer camera takes the test photographs again. `--profile quick` is ResNet-18 on photographs of 64×64.
    `--profile desk` is a compact network on photographs of 128×128, whose settings have not been tuned; methods other
    than MAP start from MAP's network.
    """
    effort = _EFFORTS[order.profile]
    train = _load(NAME, "train", effort.images, effort.size)
    normalize = Normalize.of(train.x)

    def validation() -> tuple[Tensor, Tensor]:
        held_out = _load(NAME, "validation", effort.test_images, effort.size)
        return normalize(held_out.x), held_out.y

    def evaluate(method: Method) -> Outcome:
        test = _load(NAME, "test", effort.test_images, effort.size)
        sets = {"in_domain": test, "shifted": _load_shifted(test, effort)}
        predictions = {
            name: (predict(method, normalize(each.x), effort.num_samples), each.y) for name, each in sets.items()
        }
        found, curves = evaluate_shift(predictions)
        curves["roc"] = {}
        for name, (p, y) in predictions.items():
            alarms, detected, _ = roc_curve(y, p.mean[:, 1], drop_intermediate=False)
            ending = "" if name == "in_domain" else f"_{name}"
            found[f"sensitivity_nhs{ending}"] = float(detected[alarms <= _NHS_FALSE_ALARMS].max())
            curves["roc"][name] = {"fpr": thin(alarms), "tpr": thin(detected)}
        return Outcome(found, curves, list(sets.values()))

    stands_in = bool(train.note)
    own = replace(effort, batch_size=min(effort.batch_size, _STAND_IN_BATCH)) if stands_in else effort
    held_out = validation if stands_in else None
    return image_experiment(order, own, train, normalize, evaluate, (NAME,), (SHIFTED, NAME), held_out)


def _load(name: str, split: Any, num: int | None, size: int) -> DataSplit:
    """The first `num` photographs of a split, resized if `size` differs from the stored size."""
    whole = data.load(name, split)
    x, y = whole.x[:num], whole.y[:num]
    if x.shape[-1] != size:
        x = F.interpolate(x.float(), (size, size), mode="area").round().to(x.dtype)
    return _changed(whole, x, y)


def _changed(dataset: DataSplit, x: Tensor, y: Tensor) -> DataSplit:
    return replace(dataset, x=x, y=y, sha256=content_hash(x.numpy(), y.numpy()))


def _load_shifted(test: DataSplit, effort: _PhotographEffort) -> DataSplit:
    if data.available(SHIFTED, "test"):
        return _load(SHIFTED, "test", effort.test_images, effort.size)
    return replace(_changed(test, photograph_poorly(test.x), test.y), name="retina-imitated", note=_IMITATED)


def photograph_poorly(x: Tensor) -> Tensor:
    """Photographs as a poorer camera might take them: half the resolution, dimmer and yellower."""
    blurred = F.interpolate(F.avg_pool2d(x.float(), 2), x.shape[-2:], mode="bilinear")
    return (blurred * torch.tensor([0.9, 0.8, 0.6])[:, None, None]).round().to(x.dtype)


def _columns(domain: str) -> tuple[Column, ...]:
    """The paper's table: AUC and accuracy of the kept photographs when none, half or most of them are referred."""
    shares = {"": "all kept", "_referred_50": "50% referred", "_referred_70": "70% referred"}
    measures = {"auroc": "AUC", "accuracy": "Accuracy"}
    return tuple(
        percent_column(NAME, f"{key}{share}{domain}", f"{measure}, {kept}", 1)
        for share, kept in shares.items()
        for key, measure in measures.items()
    )


TASK = Task(
    NAME,
    retina,
    Section(
        "Diabetic retinopathy",
        "Which photographs of the retina show a disease, and which should be referred to an expert?",
        (TableLayout("Retina, in domain", _columns("")), TableLayout("Retina, shifted", _columns("_shifted"))),
    ),
    Sweep(
        "retina",
        dict.fromkeys(("map", "mfvi", "mc-dropout", "fsvi", "ensemble:map"), 6),
        dict.fromkeys(("map", "fsvi", "fsvi-fixed-mean", "fsvi-refined", "mc-dropout", "ensemble:map"), 3),
    ),
    context="monochrome",
    profiles=PROFILES,
)
