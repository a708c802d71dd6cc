"""Change what dense layers and convolutions compute for a while, and leave the network's modules alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fsvi.variational.mean_field import MeanField

_LAYERS: tuple[Any, ...] = (F.linear, F.conv1d, F.conv2d, F.conv3d)
_LEAST_VARIANCE = 1e-16


class LayerMode(TorchFunctionMode, ABC):
    """Within this context, `layer` computes what `F.linear` and the convolutions would."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self.layer(func, *args, **(kwargs or {})) if func in _LAYERS else func(*args, **(kwargs or {}))

    @abstractmethod
    def layer(
        self,
        func: Callable[..., Tensor],
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        """The layer's output, where `func(input, weight, bias, *args, **kwargs)` is what it would have been."""


class LocalReparametrization(LayerMode):
    """Draw layers' outputs instead of their weights (Kingma, Salimans & Welling, 2015).

    Where the weights are independent N(μ, σ²), a layer's output at the input x is N(x μᵀ + μ_b, x² σ²ᵀ + σ_b²). It is
    drawn for every example anew, so that gradients vary less than with one draw of the weights for all. The marginal
    distribution of every output is exact; outputs at the positions of one convolution, or at several uses of one
    layer, share weights and so are correlated, which this leaves out.

    `params` are the tensors that the network is called with, a draw of `q`: layers of other kinds use them as they are.
    """

    def __init__(self, q: MeanField, params: Mapping[str, Tensor]) -> None:
        super().__init__()
        means, variances = q.layout.views(q.mean), q.layout.views((2 * q.log_std).exp())
        self._params = params
        self._moments = {id(params[name]): (means[name], variances[name]) for name in means}

    def layer(
        self,
        func: Callable[..., Tensor],
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        """A draw of the output, where the weight is stochastic."""
        if id(weight) not in self._moments:
            return func(input, weight, bias, *args, **kwargs)
        mean, variance = self._moments[id(weight)]
        bias_mean, bias_variance = self._moments.get(id(bias), (bias, None))
        location = func(input, mean, bias_mean, *args, **kwargs)
        square = func(input.square(), variance, bias_variance, *args, **kwargs)
        # an input of zeros has no variance, where the root has no finite slope
        return torch.addcmul(location, square.clamp_min(_LEAST_VARIANCE).sqrt(), _noise_like(location))


def _noise_like(values: Tensor) -> Tensor:
    """ε ~ N(0, I) in the memory layout of `values`: drawn as a flat vector, since `randn_like` is slow in others."""
    noise = torch.randn(values.numel(), dtype=values.dtype, device=values.device)
    return noise.as_strided(values.size(), values.stride())
