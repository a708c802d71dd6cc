"""Fully connected networks."""

from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import nn

from fsvi.validation import check_count


def mlp(
    in_features: int,
    hidden: Sequence[int] = (50,),
    out_features: int = 1,
    activation: Callable[[], nn.Module] = nn.ReLU,
) -> nn.Sequential:
    """A fully connected network, linear in its last layer.

    Args:
        in_features: Number of inputs.
        hidden: Width of each hidden layer; empty for a linear model.
        out_features: Number of outputs (classes, or regression targets).
        activation: A module class such as `nn.ReLU` or `nn.Tanh`; each hidden layer gets its own.
    """
    check_count("in_features", in_features)
    check_count("out_features", out_features)
    for i, width in enumerate(hidden):
        check_count(f"hidden[{i}]", width)
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise((in_features, *hidden)):
        layers += [nn.Linear(fan_in, fan_out), activation()]
    last = hidden[-1] if hidden else in_features
    return nn.Sequential(*layers, nn.Linear(last, out_features))
