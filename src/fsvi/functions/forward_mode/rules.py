"""How functions of torch move when their arguments do.

Each rule takes the function and its arguments, of which at least one is a `Dual`, and gives its result. Derivatives of
activations use what the value's own backward pass keeps anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from fsvi.functions.forward_mode.dual import RULES, Dual, Rule, by_torch, made_of, value_of
from fsvi.functions.forward_mode.kernels import DECOMPOSITIONS

_aten = torch.ops.aten


def _constant(func: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What does not move, or is no number."""
    return func(*tree_map(value_of, args), **options)


def _attribute(func: Any, x: Dual) -> Any:
    return _linear(func, x) if func.__self__.__name__ in ("T", "mT", "H", "mH", "real", "imag") else func(x.value)


def _linear(func: Callable[..., Any], x: Any, *args: Any, **options: Any) -> Any:
    """y = f(x): dy = f(dx)"""
    if not isinstance(x, Dual):  # something else moves
        return by_torch(func, x, *args, **options)
    args = tree_map(value_of, args)
    values, changes = func(x.value, *args, **options), func(x.change, *args, **options)
    return tree_map(partial(made_of, [x]), values, changes)


def _sum(func: Callable[..., Any], x: Any, other: Any, **options: Any) -> Any:
    """x ± y"""
    value = func(value_of(x), value_of(other), **options)
    if isinstance(x, Dual) and isinstance(other, Dual):
        change = func(x.change, other.change, **options)
    elif isinstance(x, Dual):
        change = x.change
    else:
        change = func(torch.zeros_like(other.change), other.change, **options)
    return Dual(value, change if change.shape == value.shape else change.expand_as(value))


def _product(func: Callable[..., Any], x: Any, other: Any, **options: Any) -> Dual:
    """y = x z: dy = dx z + x dz"""
    changes = [func(x.change, value_of(other), **options)] if isinstance(x, Dual) else []
    changes += [func(value_of(x), other.change, **options)] if isinstance(other, Dual) else []
    return Dual(func(value_of(x), value_of(other), **options), sum(changes[1:], changes[0]))


def _affine(func: Callable[..., Any], x: Any, weight: Any, bias: Any = None, *args: Any, **options: Any) -> Any:
    """y = x w + b: dy = dx w + x dw + db"""

    def apply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return func(x, weight, bias, *args, **options)

    if isinstance(bias, Dual) and not isinstance(weight, Dual):  # a frozen weight
        return by_torch(func, x, weight, bias, *args, **options)
    fixed = value_of(weight)
    own: Any = None
    if isinstance(weight, Dual):
        own = apply(value_of(x), weight.change, bias.change if isinstance(bias, Dual) else None)
    if not isinstance(x, Dual):
        return Dual(apply(x, fixed, value_of(bias)), own)
    if bias is None and x.dim() == fixed.dim() and x.numel() < fixed.numel():  # a large weight is better read once
        value, through = apply(torch.cat([x.value, x.change]), fixed).chunk(2)
    else:
        value, through = apply(x.value, fixed, value_of(bias)), apply(x.change, fixed)
    return Dual(value, through if own is None else through + own)


def _quotient(func: Callable[..., Any], x: Any, other: Any, **options: Any) -> Any:
    """y = x / z, where z does not move"""
    if isinstance(other, Dual) or options.get("rounding_mode"):
        return by_torch(func, x, other, **options)
    return _linear(func, x, other, **options)


def _joined(func: Callable[..., Any], tensors: Any, *args: Any, **options: Any) -> Dual:
    """Several tensors put together"""
    changes = [t.change if isinstance(t, Dual) else torch.zeros_like(t) for t in tensors]
    return Dual(func([value_of(t) for t in tensors], *args, **options), func(changes, *args, **options))


def _activation(derivative: Callable[..., Tensor]) -> Rule:
    """y = f(x): dy = f'(x) dx, which `derivative` computes from dx, x, y and the function's other arguments"""

    def rule(func: Callable[..., Any], x: Dual, *args: Any, **options: Any) -> Dual:
        value = func(x.value, *args, **options)
        return Dual(value, derivative(x.change, x.value, value, *args, **options))

    return rule


def _softmax(func: Callable[..., Any], x: Dual, dim: int, dtype: torch.dtype | None = None) -> Dual:
    """dy = y (dx − Σ y dx)"""
    value = func(x.value, dim, dtype)
    return Dual(value, _aten._softmax_backward_data(x.change.to(value.dtype), value, dim, value.dtype))


def _batch_norm(
    func: Callable[..., Any], x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, *args: Any
) -> Any:
    """With running statistics, a multiplication"""
    if training:
        return DECOMPOSITIONS[F.batch_norm](x, mean, variance, weight, bias, training, *args[:2])
    rest = (training, *args)
    if not isinstance(x, Dual) or isinstance(weight, Dual) or isinstance(bias, Dual):
        return by_torch(func, x, weight, bias, mean, variance, *rest)
    change = func(x.change, weight, None, torch.zeros_like(mean), variance, *rest)
    return Dual(func(x.value, weight, bias, mean, variance, *rest), change)


def _attention(
    func: Callable[..., Any],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Any:
    """softmax(q kᵀ / √d + mask) v, and 0 where the mask leaves nothing"""
    scale = options.pop("scale", None) or query.shape[-1] ** -0.5
    if dropout_p or any(options.values()):
        return by_torch(func, query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **options)
    scores = (query * scale) @ key.transpose(-2, -1)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=scores.dtype).masked_fill(~attn_mask, float("-inf"))
    if attn_mask is None:
        return scores.softmax(-1) @ value
    empty = (value_of(attn_mask) == float("-inf")).all(-1, keepdim=True)
    return ((scores + attn_mask.masked_fill(empty, 0.0)).softmax(-1) * (~empty).to(scores.dtype)) @ value


def _max_pool(func: Callable[..., Any], x: Dual, *args: Any, return_indices: bool = False, **options: Any) -> Any:
    """The change of what is largest"""
    value, places = F.max_pool2d(x.value, *args, return_indices=True, **options)
    largest = Dual(value, _pick(x.change, places))
    return (largest, places) if return_indices else largest


def _pick(images: Tensor, places: Tensor) -> Tensor:
    """The pixels at `places`, which count through a channel; without a copy where channels come last in memory."""
    if images.dim() == 4 and images.is_contiguous(memory_format=torch.channels_last):
        pixels, order = (t.permute(0, 2, 3, 1) for t in (images, places))
        return pixels.flatten(1, 2).gather(1, order.flatten(1, 2)).view(order.shape).permute(0, 3, 1, 2)
    return images.flatten(-2).gather(-1, places.flatten(-2)).view(places.shape)


def _unless_dropping(func: Callable[..., Any], x: Any, p: float, training: bool) -> Any:
    """Nothing is dropped in eval mode; elsewhere value and change need the same mask."""
    return by_torch(func, x, p, training) if training else x


_CONSTANT = """size dim numel stride is_contiguous is_floating_point is_complex get_device __len__ item tolist detach
    zeros_like ones_like empty_like full_like new_zeros new_ones new_full new_empty new_tensor
    eq ne lt le gt ge isnan isinf isfinite argmax argmin argsort sign"""
_LINEAR = """view reshape flatten unflatten permute transpose t swapaxes movedim squeeze unsqueeze expand contiguous
    clone to float double half bfloat16 sum mean cumsum neg flip roll narrow select unbind chunk split split_with_sizes
    tensor_split __getitem__ index_select gather repeat repeat_interleave avg_pool1d avg_pool2d avg_pool3d
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d upsample_nearest2d upsample_bilinear2d
    embedding"""
_AFFINE = "linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d"

RULES.update(
    {
        **dict.fromkeys(_CONSTANT.split(), _constant),
        **dict.fromkeys(_LINEAR.split(), _linear),
        **dict.fromkeys(_AFFINE.split(), _affine),
        **dict.fromkeys(("mul", "matmul", "mm", "bmm"), _product),
        **dict.fromkeys(("add", "sub"), _sum),
        **dict.fromkeys(("div", "true_divide"), _quotient),
        **dict.fromkeys(("cat", "stack"), _joined),
        "__get__": _attribute,
        "__rsub__": lambda func, x, other: other + -x,
        "relu": _activation(lambda dx, x, y: _aten.threshold_backward(dx, y.detach(), 0)),
        "tanh": _activation(lambda dx, x, y: _aten.tanh_backward(dx, y)),
        "sigmoid": _activation(lambda dx, x, y: _aten.sigmoid_backward(dx, y)),
        "gelu": _activation(lambda dx, x, y, **kind: _aten.gelu_backward(dx, x, **kind)),
        "exp": _activation(lambda dx, x, y: dx * y),
        "square": _activation(lambda dx, x, y: 2 * x * dx),
        "rsqrt": _activation(lambda dx, x, y: -0.5 * y**3 * dx),
        "silu": lambda func, x: x * x.sigmoid(),
        "softmax": _softmax,
        "batch_norm": _batch_norm,
        "scaled_dot_product_attention": _attention,
        "max_pool2d": _max_pool,
        "dropout": _unless_dropping,
    }
)
