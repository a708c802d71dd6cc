"""Replacements of fused kernels: the same values, and derivatives that can be differentiated again."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd.gradcheck import gradcheck
from torch.func import jvp

from fsvi.functions.linearize import plain_kernels


def rand(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


KERNELS = {
    "layer_norm": (lambda x: F.layer_norm(x, [3, 4], rand(3, 4), rand(3, 4)), (5, 3, 4)),
    "group_norm": (lambda x: F.group_norm(x, 2, rand(4), rand(4)), (3, 4, 2, 2)),
    "group_norm_without_scale": (lambda x: F.group_norm(x, 2), (3, 4, 2)),
    "instance_norm": (lambda x: F.instance_norm(x, None, None, rand(2), rand(2)), (3, 2, 4)),
    "instance_norm_with_statistics": (
        lambda x: F.instance_norm(x, rand(2), rand(2).exp(), rand(2), rand(2), use_input_stats=False),
        (3, 2, 4),
    ),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, rand(2), rand(2), training=True), (4, 2, 3)),
    "batch_norm_in_evaluation": (lambda x: F.batch_norm(x, rand(2), rand(2).exp(), rand(2), rand(2)), (4, 2, 3)),
    "glu": (lambda x: F.glu(x, 1), (3, 4)),
    "hardsigmoid": (lambda x: F.hardsigmoid(5 * x), (7, 3)),
    "weight_norm": (lambda x: torch._weight_norm(x, rand(3, 1), 0), (3, 4)),
    "weight_norm_of_the_whole_tensor": (lambda x: torch._weight_norm(x, rand(1, 1), -1), (3, 4)),
    "weight_norm_of_the_last_dimension": (lambda x: torch._weight_norm(x, rand(1, 4), 1), (3, 4)),
}


@pytest.mark.parametrize("name", KERNELS)
def test_values_are_those_of_the_fused_kernel(name):
    kernel, shape = KERNELS[name]
    x = rand(*shape)
    with plain_kernels():
        plain = kernel(x)
    torch.testing.assert_close(plain, kernel(x))


@pytest.mark.parametrize("name", KERNELS)
def test_the_gradient_of_the_forward_derivative_is_that_of_finite_differences(name):
    kernel, shape = KERNELS[name]
    x, direction = rand(*shape).requires_grad_(), rand(1, *shape)[0]

    def change(value):
        with plain_kernels():
            return jvp(kernel, (value,), (direction,))[1]

    assert gradcheck(change, (x,), fast_mode=True)


def test_the_forward_derivative_is_that_of_finite_differences():
    for kernel, shape in KERNELS.values():
        x, direction = rand(*shape), rand(1, *shape)[0]
        with plain_kernels():
            _, change = jvp(kernel, (x,), (direction,))
        step = 1e-6
        expected = (kernel(x + step * direction) - kernel(x - step * direction)) / (2 * step)
        torch.testing.assert_close(change, expected, rtol=1e-5, atol=1e-7)
