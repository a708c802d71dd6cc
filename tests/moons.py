"""Two moons, with a method and its training, for the tests of the diagnosis."""

from typing import Any

import torch
from torch import nn

import fsvi
from fsvi.data.toy import two_moons
from fsvi.diagnosis import Diagnosis
from fsvi.networks import mlp

MOONS = two_moons()


def moons_method(**settings: Any) -> fsvi.FSVI:
    torch.manual_seed(0)
    box = fsvi.contexts.Uniform(low=[-10, -10], high=[10, 10])
    return fsvi.FSVI(mlp(2, (30, 30), 2, nn.Tanh), fsvi.Categorical(), **{"context": box, **settings})


def trained(method: Any, data: Any = MOONS, epochs: int = 100) -> Any:
    fsvi.fit(method, data, epochs=epochs, batch_size=256, progress=False)
    return method


def faults(diagnosis: Diagnosis) -> set[str]:
    return {finding.name for finding in diagnosis if finding.level == "no"}
