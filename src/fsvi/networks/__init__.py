"""Networks of the paper, and the split of any network into features and its last linear layer."""

from fsvi.networks.cnn import cnn
from fsvi.networks.mlp import mlp
from fsvi.networks.ranges import RangeFeatures, table_mlp
from fsvi.networks.resnet import resnet18, resnet50
from fsvi.networks.split import Split, split_head

__all__ = ["RangeFeatures", "Split", "cnn", "mlp", "resnet18", "resnet50", "split_head", "table_mlp"]
