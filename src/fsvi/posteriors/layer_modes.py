"""Temporarily change what dense layers and convolutions compute, without changing the network's modules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

_LAYERS: tuple[Any, ...] = (F.linear, F.conv1d, F.conv2d, F.conv3d)


def is_weight_layer(module: Any, kinds: tuple[type[nn.Module], ...]) -> bool:
    """Whether it has a trainable weight and is of one of these kinds.

    The projections inside `nn.MultiheadAttention` are not, because it uses their weights in its own way.
    """
    inside_attention = isinstance(module, nn.modules.linear.NonDynamicallyQuantizableLinear)
    return isinstance(module, kinds) and not inside_attention and bool(module.weight.requires_grad)


class LayerMode(TorchFunctionMode, ABC):
    """A context in which the method `layer` replaces `F.linear` and the convolutions."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self.layer(func, *args, **(kwargs or {})) if func in _LAYERS else func(*args, **(kwargs or {}))

    @abstractmethod
    def layer(self, func: Any, input: Tensor, weight: Tensor, bias: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        """The output of a layer that calls `func`, which is `F.linear` or a convolution, with these arguments."""
