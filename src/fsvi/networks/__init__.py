"""The user's network, and the networks of the paper, for tables and for texts.

Examples:
    >>> net = fsvi.networks.mlp(2, (50, 50), 3, torch.nn.Tanh)
    >>> net(torch.zeros(4, 2)).shape
    torch.Size([4, 3])
"""

from fsvi.networks.cnn import cnn
from fsvi.networks.distance import RandomFeatures
from fsvi.networks.mlp import mlp
from fsvi.networks.network import Network
from fsvi.networks.resnet import ResNet, resnet18, resnet50
from fsvi.networks.tabular import DistanceFeatures, TabularFeatures
from fsvi.networks.text import TextEncoder

__all__ = [
    "DistanceFeatures",
    "Network",
    "RandomFeatures",
    "ResNet",
    "TabularFeatures",
    "TextEncoder",
    "cnn",
    "mlp",
    "resnet18",
    "resnet50",
]
