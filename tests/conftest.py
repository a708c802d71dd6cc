"""Networks, random state and a way to run commands that several tests share; no network.

pytest-socket (see pyproject.toml) lets tests connect to loopback only. It cannot see processes that a test starts, nor
the lookup of a host's name; the proxy below, at a port of loopback where nobody listens, stops these.
"""

import os
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import stand_in
from fsvi.networks import ResNet
from fsvi.networks.resnet import Residual

for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
    os.environ[name] = "http://127.0.0.1:9"


class Transformer(nn.Module):
    """Tokens (n, length, 3) → an encoder → the average → classes."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 8)
        layer = nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=16, dropout=dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x)).mean(1))


class Recurrent(nn.Module):
    """Tokens (n, length, 3) → the last hidden state → classes."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.rnn = kind(3, 6, batch_first=True)
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


class HeadFirst(nn.Module):
    """The last layer registered before the layers that feed it."""

    def __init__(self, outputs: int = 2) -> None:
        super().__init__()
        self.fc = nn.Linear(5, outputs)
        self.body = nn.Linear(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.tanh(self.body(x)))


class TiedFeatures(nn.Module):
    """One feature layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 4)
        self.first = nn.Linear(4, 4)
        self.second = self.first
        self.fc = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.tanh(self.second(torch.tanh(self.first(self.embed(x))))))


class TiedHead(nn.Module):
    """The last layer shares its weight with an earlier layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 3)
        self.fc = nn.Linear(3, 3)
        self.fc.weight = self.body.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.tanh(self.body(x)))


def _normalised(norm: nn.Module) -> nn.Sequential:
    layers = [nn.Conv2d(2, 4, 3), norm, nn.Tanh(), nn.Conv2d(4, 4, 3, groups=4), nn.Tanh()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 2))


def _residual() -> nn.Sequential:
    first, second = nn.Conv2d(4, 6, 3, 2, padding=1, bias=False), nn.Conv2d(6, 6, 3, padding=1, bias=False)
    block = Residual([first, nn.BatchNorm2d(6), nn.ReLU(), second, nn.BatchNorm2d(6)], 4, 6, stride=2)
    stem = [nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU()]
    return nn.Sequential(*stem, block, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 2))


ZOO: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)), (3,)),
    "no_bias": (lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2, bias=False)), (3,)),
    "one_output": (lambda: nn.Sequential(nn.Linear(1, 2), nn.Tanh(), nn.Linear(2, 1)), (1,)),
    "dropout": (lambda: nn.Sequential(nn.Linear(3, 9), nn.Tanh(), nn.Dropout(0.5), nn.Linear(9, 2)), (3,)),
    "linear": (lambda: nn.Sequential(nn.Linear(3, 2)), (3,)),
    "head_first": (HeadFirst, (3,)),
    "tied_features": (TiedFeatures, (3,)),
    "tied_head": (TiedHead, (3,)),
    "transformer": (Transformer, (4, 3)),
    "transformer_dropout": (lambda: Transformer(dropout=0.3), (4, 3)),
    "lstm": (lambda: Recurrent(nn.LSTM), (4, 3)),
    "gru": (lambda: Recurrent(nn.GRU), (4, 3)),
    "depthwise": (lambda: _normalised(nn.Identity()), (2, 6, 6)),
    "group_norm": (lambda: _normalised(nn.GroupNorm(2, 4)), (2, 6, 6)),
    "layer_norm": (lambda: _normalised(nn.LayerNorm((4, 4, 4))), (2, 6, 6)),
    "batch_norm": (lambda: _normalised(nn.BatchNorm2d(4)), (2, 6, 6)),
    "residual": (_residual, (3, 8, 8)),
    "resnet18": (lambda: ResNet(18, 3, 2), (3, 8, 8)),
}


@pytest.fixture(autouse=True)
def seed():
    """Every test starts from the same random state."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def every_epoch(monkeypatch):
    """Checkpoints are written after each epoch."""
    monkeypatch.setattr("fsvi.training.checkpoints.INTERVAL", 0.0)


@pytest.fixture
def make():
    """`make(name, n)`: a network of the zoo in float64, and n inputs for it."""

    def build(name: str, num: int = 4, seed: int = 0) -> tuple[nn.Module, Tensor]:
        torch.manual_seed(seed)
        net, shape = ZOO[name]
        return net().double(), torch.randn(num, *shape, dtype=torch.float64)

    return build


@pytest.fixture
def run(monkeypatch, capsys):
    """`run("demo", "--quick")`: the exit code of the command line, and what it printed."""
    from fsvi import cli

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fsvi", *arguments])
        with pytest.raises(SystemExit) as exit_info:
            cli.main()
        captured = capsys.readouterr()
        return exit_info.value.code or 0, captured.out, captured.err

    return call


def pytest_configure() -> None:
    """Torch's autograd looks for devices once, at the first backward pass."""
    stand_in.register()
