"""The user's network, and the networks of the paper, for tables and for texts."""

from fsvi.networks.cnn import cnn
from fsvi.networks.fading import FadingFeatures
from fsvi.networks.known_rows import KnownRows
from fsvi.networks.mlp import mlp
from fsvi.networks.network import Network
from fsvi.networks.resnet import resnet18, resnet50
from fsvi.networks.table_networks import table_mlp
from fsvi.networks.text import text_encoder

__all__ = ["FadingFeatures", "KnownRows", "Network", "cnn", "mlp", "resnet18", "resnet50", "table_mlp", "text_encoder"]
