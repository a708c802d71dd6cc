"""Small methods with data to train them on, each with something of its own to keep."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import fsvi
from fsvi.training.checkpoints import flatten

FAST: dict[str, Any] = {"num_context": 5, "kl_weight": 1e-2, "linearize": "conditional"}


def dense(outputs: int = 2, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Dropout(0.1), nn.Linear(6, outputs))


def normalised(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 2))


def points(num: int = 20, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs (n, 2) and labels of two classes that a line divides."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num, 2, generator=generator)
    return x, (x.sum(1) > 0).long()


class Points(Dataset[Any]):
    """A map-style dataset that is not a TensorDataset."""

    def __init__(self, num: int = 20) -> None:
        self.x, self.y = points(num)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return self.x[index], self.y[index]


def curve(num: int = 20) -> tuple[Tensor, Tensor]:
    """Inputs (n, 2) and real targets (n, 1)."""
    x, _ = points(num)
    return x, x[:, :1].sin()


def images(num: int = 20) -> tuple[Tensor, Tensor]:
    """Images (n, 2, 5, 5) whose class is their brightness."""
    _, y = points(num)
    generator = torch.Generator().manual_seed(1)
    return torch.randn(num, 2, 5, 5, generator=generator) + y[:, None, None, None], y


def box() -> fsvi.contexts.Uniform:
    return fsvi.contexts.Uniform(low=[-3, -3], high=[3, 3])


def plain(prior_variance: float | None = None) -> fsvi.MAP:
    """A method without any randomness of its own."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 2))
    return fsvi.MAP(net, fsvi.Categorical(), prior_variance=prior_variance)


def classifier(**settings: Any) -> fsvi.FSVI:
    usual = {"context": box(), "prior": fsvi.priors.Constant(variance=1.0), **FAST}
    return fsvi.FSVI(dense(), fsvi.Categorical(), **{**usual, **settings})


def regressor(**settings: Any) -> fsvi.FSVI:
    noise = fsvi.Gaussian(noise=0.3, learn_noise=True)
    return fsvi.FSVI(dense(1), noise, context=fsvi.contexts.Uniform(widen=0.5), **{**FAST, **settings})


def image_classifier(**settings: Any) -> fsvi.FSVI:
    context = fsvi.contexts.Mixture([fsvi.contexts.Batch(), fsvi.contexts.Monochrome()], [0.4, 0.6])
    prior = fsvi.priors.Induced(feature_variance=0.01)
    return fsvi.FSVI(normalised(), fsvi.Categorical(), context=context, prior=prior, **{**FAST, **settings})


SCENARIOS: dict[str, tuple[Callable[[], fsvi.Method], Callable[[], tuple[Tensor, Tensor]]]] = {
    "jvp": (lambda: classifier(linearize="jvp", num_context_sets=2), points),
    "conditional": (lambda: classifier(num_samples=2), points),
    "last_layer": (lambda: classifier(stochastic="last_layer"), points),
    "learned_noise": (regressor, curve),
    "batch_norm": (image_classifier, images),
    "batch_norm_jvp": (lambda: image_classifier(linearize="jvp"), images),
    "map": (lambda: fsvi.MAP(dense(), fsvi.Categorical()), points),
    "mfvi": (lambda: fsvi.MFVI(dense(), fsvi.Categorical()), points),
    "radial_batch_norm": (lambda: fsvi.RadialMFVI(normalised(), fsvi.Categorical(), num_samples=2), images),
    "rank1_batch_norm": (lambda: fsvi.Rank1(normalised(), fsvi.Categorical(), random_signs=True), images),
    "map_batch_norm": (lambda: fsvi.MAP(normalised(), fsvi.Categorical()), images),
}


def build(name: str) -> tuple[fsvi.Method, tuple[Tensor, Tensor]]:
    """A fresh method and its data."""
    make, data = SCENARIOS[name]
    return make(), data()


def copied(method: fsvi.Method) -> dict[str, Tensor]:
    """What the method has learned, as it is now."""
    return {name: tensor.clone() for name, tensor in method.state_dict().items()}


def same_bits(first: Any, second: Any) -> bool:
    """Whether two trees of plain values and tensors are the same, bit by bit."""
    a, b = (flatten({name: _plain(value) for name, value in tree.items()}) for tree in (first, second))
    return a == b


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        dense = value.detach().clone(memory_format=torch.contiguous_format)
        return [str(value.dtype), list(value.shape), dense.reshape(-1).view(torch.uint8).numpy().tobytes().hex()]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
