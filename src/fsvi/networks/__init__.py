"""The user's network, and the networks of the paper and for tables."""

from fsvi.networks.cnn import cnn
from fsvi.networks.mlp import mlp
from fsvi.networks.network import Network
from fsvi.networks.ranges import RangeFeatures, table_mlp
from fsvi.networks.resnet import resnet18, resnet50

__all__ = ["Network", "RangeFeatures", "cnn", "mlp", "resnet18", "resnet50", "table_mlp"]
