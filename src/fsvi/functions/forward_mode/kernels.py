"""Kernels that differentiate in forward mode, and whose derivative differentiates again: the cures in one place.

With torch 2.13 on a CPU: fused attention and the fused LSTM have no forward-mode derivative; the fused normalisations
have one, but its own gradient takes their statistics for constants, which is wrong without a warning, or it fails on
images in channels-last order; that of a gated linear unit has no gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode


@contextmanager
def plain_kernels(net: nn.Module) -> Iterator[None]:
    """Compute without fused kernels for a while; the global switches come back as they were."""
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with ExitStack() as stack:
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            if any(isinstance(module, nn.LSTM) for module in net.modules()):
                stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
            stack.enter_context(_Decomposed())
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)


class _Decomposed(TorchFunctionMode):
    """Normalisations and gates written out in elementary operations."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _DECOMPOSITIONS.get(func, func)(*args, **(kwargs or {}))


def _layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    return _affine(_standardise(x, list(range(-len(shape), 0)), eps), weight, bias)


def _group_norm(
    x: Tensor, groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    grouped = _standardise(x.reshape(len(x), groups, -1), [-1], eps).reshape(x.shape)
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
        return F.instance_norm(x, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
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
    return _affine(_standardise(x, others, eps), _per_channel(weight, x), _per_channel(bias, x))


def _glu(x: Tensor, dim: int = -1) -> Tensor:
    value, gate = x.chunk(2, dim)
    return value * gate.sigmoid()


def _standardise(x: Tensor, dims: list[int], eps: float) -> Tensor:
    centred = x - x.mean(dims, keepdim=True)
    return centred * (centred.square().mean(dims, keepdim=True) + eps).rsqrt()


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _per_channel(vector: Tensor | None, x: Tensor) -> Tensor | None:
    return None if vector is None else vector.reshape(-1, *[1] * (x.dim() - 2))


_DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    F.layer_norm: _layer_norm,
    F.group_norm: _group_norm,
    F.instance_norm: _instance_norm,
    F.batch_norm: _batch_norm,
    F.glu: _glu,
}
