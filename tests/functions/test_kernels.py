"""Kernels by hand, against scikit-learn's, and as parts of each other."""

import math

import pytest
import torch
from sklearn.gaussian_process import kernels as theirs

from fsvi.errors import InvalidInputError
from fsvi.functions.kernels import RBF, Kernel, Linear, Matern, Periodic, Product, Sum, median_distance


def scalar(value):
    return torch.tensor(value, dtype=torch.float64)


def inputs(num=7, columns=2):
    return torch.randn(num, columns, dtype=torch.float64)


def same(kernel, other, x=None):
    x = inputs() if x is None else x
    torch.testing.assert_close(kernel(x), torch.from_numpy(other(x.numpy())))


def test_the_kernel_by_hand():
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    off = 2 * math.exp(-(5**2) / (2 * 2.5**2))
    expected = torch.tensor([[2.0, off], [off, 2.0]], dtype=torch.float64)
    torch.testing.assert_close(RBF(2.5, 2.0)(x), expected)
    torch.testing.assert_close(RBF(2.5, 2.0)(x.view(2, 1, 2, 1)), expected)


def test_columns_with_lengthscales_of_their_own_by_hand():
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    kernel = RBF([1.5, 8.0], 2.0)(x)
    assert float(kernel[0, 1]) == pytest.approx(2 * math.exp(-0.5 * (2**2 + 0.5**2)))


def test_the_median_distance_leaves_repeated_inputs_out():
    assert float(median_distance(torch.tensor([[0.0], [1.0], [3.0]]))) == 2.0
    assert float(median_distance(torch.tensor([[0.0], [0.0], [0.0], [5.0]]))) == 5.0
    assert float(median_distance(torch.zeros(4, 2))) == 1.0


# Objects -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengthscale", [0.7, [0.7, 1.9]])
@pytest.mark.parametrize("smoothness", [0.5, 1.5, 2.5])
def test_stationary_kernels_are_scikit_learns(lengthscale, smoothness):
    same(RBF(lengthscale, 1.4), 1.4 * theirs.RBF(lengthscale))
    same(Matern(smoothness, lengthscale, 1.4), 1.4 * theirs.Matern(lengthscale, nu=smoothness))


def test_the_periodic_kernel_is_scikit_learns():
    same(Periodic(1.7, 0.6, 1.4), 1.4 * theirs.ExpSineSquared(0.6, 1.7), inputs(columns=1))


def test_the_periodic_kernel_of_two_columns_by_hand():
    x = inputs()
    squares = (math.pi * (x[:, None] - x[None]) / 1.7).sin().square() / scalar([0.6, 0.9]).square()
    torch.testing.assert_close(Periodic(1.7, [0.6, 0.9], 1.4)(x), 1.4 * (-2 * squares.sum(-1)).exp())


def test_the_linear_kernel_is_scikit_learns_and_has_variances_per_column():
    same(Linear(0.8, 0.8 * 0.3**2), 0.8 * theirs.DotProduct(0.3))
    x = inputs()
    torch.testing.assert_close(Linear([0.5, 2.0], 0.1)(x), x @ torch.diag(scalar([0.5, 2.0])) @ x.T + 0.1)


def test_sums_and_products_are_those_of_matrices():
    x = inputs()
    a, b, c = RBF(0.7), Matern(1.5, 0.9), Linear(0.3)
    torch.testing.assert_close((a + b)(x), a(x) + b(x))
    torch.testing.assert_close((a * b)(x), a(x) * b(x))
    torch.testing.assert_close(((a + b) * c)(x), (a(x) + b(x)) * c(x))
    assert len((a + b + c).kernels) == 3 and len((a * b * c).kernels) == 3 and len((a * (b + c)).kernels) == 2


def test_matrices_have_gradients_for_all_hyperparameters():
    x = inputs()
    kernel = (RBF() + Matern(0.5)) * Periodic() + Linear()
    values = kernel.start(x).requires_grad_()
    torch.autograd.gradcheck(lambda v: kernel(x, v), values)


def test_a_config_makes_the_same_kernel():
    kernel = (RBF([0.7, 0.8]) + Matern(0.5, columns=[1])) * Periodic(3.0) + Linear(0.1)
    again = Kernel.from_config(kernel.config())
    assert type(again) is Sum and type(again.kernels[0]) is Product
    x = inputs()
    assert torch.equal(again(x), kernel(x))


# Bad input -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: RBF(0.0), "lengthscale"),
        (lambda: RBF([1.0, -1.0]), "lengthscale"),
        (lambda: RBF([]), "lengthscale"),
        (lambda: RBF("long"), "lengthscale"),
        (lambda: Matern(2.0), "smoothness"),
        (lambda: Periodic(period=0.0), "period"),
        (lambda: Linear(bias=-1.0), "bias"),
        (lambda: RBF(columns=[]), "columns"),
        (lambda: RBF(columns=[1, 1]), "columns"),
        (lambda: RBF(columns=[-1]), "columns"),
        (lambda: RBF() + 1, "kernel"),
        (lambda: Sum([]), "kernel"),
        (lambda: RBF([1.0, 2.0, 3.0])(inputs()), "2 columns"),
        (lambda: RBF([1.0, 2.0], columns=[0])(inputs()), "1 columns"),
        (lambda: (RBF() * Linear(columns=[2]))(inputs()), "column 2"),
    ],
)
def test_bad_kernels_are_refused(make, said):
    with pytest.raises(InvalidInputError, match=said):
        make()
