"""Replacements for fused kernels that torch cannot differentiate in forward mode, or cannot differentiate twice.

Seen with torch 2.13 on a CPU:

- fused attention, the fused LSTM and `weight_norm` have no forward-mode derivative;
- the fused normalizations have one, but its gradient treats their statistics as constants. This is wrong without a
  warning, or it fails on images in channels-last order;
- the gradient of `weight_norm` is wrong when it is differentiated again, also without a warning;
- the derivatives of gated linear units and of `hardsigmoid` have no gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Compute without fused kernels inside this context; global switches are restored afterwards."""
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with _Decomposed():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)


class _Decomposed(TorchFunctionMode):
    """Attention and LSTM that are not fused; normalizations, gates and `hardsigmoid` in elementary operations."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return DECOMPOSITIONS.get(func, func)(*args, **(kwargs or {}))


def _layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    return _affine(_standardize(x, list(range(-len(shape), 0)), eps), weight, bias)


def _group_norm(
    x: Tensor, groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    grouped = _standardize(x.reshape(len(x), groups, -1), [-1], eps).reshape(x.shape)
    return _affine(grouped, _per_channel(weight, x), _per_channel(bias, x))


def _instance_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if not use_input_stats:
        return F.batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
    return _group_norm(x, x.shape[1], weight, bias, eps)


def _batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if not training:
        return F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    others = [dim for dim in range(x.dim()) if dim != 1]
    return _affine(_standardize(x, others, eps), _per_channel(weight, x), _per_channel(bias, x))


def _glu(x: Tensor, dim: int = -1) -> Tensor:
    value, gate = x.chunk(2, dim)
    return value * gate.sigmoid()


def _hardsigmoid(x: Tensor, inplace: bool = False) -> Tensor:
    return (x / 6 + 0.5).clamp(0, 1)


def _lstm(*args: Any) -> Any:
    with torch.backends.mkldnn.flags(enabled=False):
        return torch.lstm(*args)


def _weight_norm(direction: Tensor, scale: Tensor, dim: int = 0) -> Tensor:
    """scale · direction / ‖direction‖, the norm over all dimensions but `dim`, or over all with −1."""
    others = [each for each in range(direction.dim()) if dim == -1 or each != dim % direction.dim()]
    return direction * (scale / direction.square().sum(others, keepdim=True).sqrt())


def _standardize(x: Tensor, dims: list[int], eps: float) -> Tensor:
    centered = x - x.mean(dims, keepdim=True)
    return centered * (centered.square().mean(dims, keepdim=True) + eps).rsqrt()


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _per_channel(vector: Tensor | None, x: Tensor) -> Tensor | None:
    return None if vector is None else vector.reshape(-1, *[1] * (x.dim() - 2))


def _unfused(attention: Callable[..., Any]) -> Callable[..., Any]:
    def plain(*args: Any, **kwargs: Any) -> Any:
        with sdpa_kernel(SDPBackend.MATH):
            return attention(*args, **kwargs)

    return plain


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    F.scaled_dot_product_attention: _unfused(F.scaled_dot_product_attention),
    F.multi_head_attention_forward: _unfused(F.multi_head_attention_forward),
    F.layer_norm: _layer_norm,
    F.group_norm: _group_norm,
    F.instance_norm: _instance_norm,
    F.batch_norm: _batch_norm,
    F.glu: _glu,
    F.hardsigmoid: _hardsigmoid,
    torch._weight_norm: _weight_norm,
    torch.lstm: _lstm,
}
