"""Temporarily change what dense layers and convolutions compute, without changing the network's modules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fsvi.posteriors.mean_field import MeanField

_LAYERS: tuple[Any, ...] = (F.linear, F.conv1d, F.conv2d, F.conv3d)
_LEAST_VARIANCE = 1e-16


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


class LocalReparametrization(LayerMode):
    """Draw the outputs of layers instead of their weights (Kingma, Salimans & Welling, 2015).

    If the weights are independent N(μ, σ²), a layer's output at the input x is N(x μᵀ + μ_b, x² σ²ᵀ + σ_b²). Each
    example gets its own draw, so gradients vary less than with one draw of the weights for all examples. The marginal
    distribution of each output is exact. Outputs at different positions of a convolution, or at several uses of one
    layer, share weights and are correlated; this is ignored.

    Args:
        q: The distribution of the weights.
        params: The tensors that the network is called with, a draw of `q`. Layers of other kinds use them unchanged.
    """

    def __init__(self, q: MeanField, params: Mapping[str, Tensor]) -> None:
        super().__init__()
        means, variances = q.means(), q.layout.views((2 * q.log_std).exp())
        self._params = params
        self._moments = {id(params[name]): (means[name], variances[name]) for name in means}

    def layer(self, func: Any, input: Tensor, weight: Tensor, bias: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        """A draw of the output if the weight is stochastic."""
        if id(weight) not in self._moments:
            return func(input, weight, bias, *args, **kwargs)
        mean, variance = self._moments[id(weight)]
        bias_mean, bias_variance = self._moments.get(id(bias), (bias, None))
        location = func(input, mean, bias_mean, *args, **kwargs)
        square = func(input.square(), variance, bias_variance, *args, **kwargs)
        # An input of zeros has no variance, and the square root has no finite slope at zero.
        return torch.addcmul(location, square.clamp_min(_LEAST_VARIANCE).sqrt(), _noise_like(location))


def _noise_like(values: Tensor) -> Tensor:
    """ε ~ N(0, I) in the memory layout of `values`: drawn as a flat vector, since `randn_like` is slow in others."""
    noise = torch.randn(values.numel(), dtype=values.dtype, device=values.device)
    return noise.as_strided(values.size(), values.stride())
