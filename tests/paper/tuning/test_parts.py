import pytest

from fsvi import Gaussian
from fsvi.functions.contexts import Uniform
from fsvi.functions.divergences import KL, RegularizedKL
from fsvi.functions.kernels import Matern
from fsvi.functions.priors import Constant, Empirical, GaussianProcess
from fsvi.methods import FSEB, FSVI, GFSVI, MAP
from fsvi.networks import mlp
from paper.tuning.parts import part_arguments, part_values, with_parts


def function_space(kind, **settings):
    return kind(mlp(1, (4,), 1), Gaussian(0.1), Uniform([-1.0], [1.0]), **settings)


def test_a_prior_and_a_divergence_are_made_anew_with_their_other_settings_kept():
    method = function_space(
        GFSVI, prior=GaussianProcess(0.5, 2.0), divergence=RegularizedKL(1e-2, num_draws=3), num_context=7
    )
    assert part_values(method) == {"prior_variance": 2.0, "gamma": 1e-2}
    assert part_arguments(method) == {"prior", "divergence"}
    made = with_parts(method, {"gamma": 0.1, "prior_variance": 5.0, "kl_weight": 0.3})
    assert made.keys() == {"prior", "divergence", "kl_weight"} and made["kl_weight"] == 0.3
    assert made["prior"].config() == GaussianProcess(0.5, 5.0).config()
    assert made["divergence"].config() == RegularizedKL(0.1, num_draws=3).config()
    assert (method.prior.variance, method.divergence.gamma) == (2.0, 1e-2)


@pytest.mark.parametrize("kernel", [None, Matern(1.5)])
def test_a_process_that_is_fitted_to_the_targets_has_no_variance_to_search(kernel):
    method = function_space(GFSVI, prior=GaussianProcess(learn=True, kernel=kernel))
    assert part_values(method) == {"gamma": RegularizedKL().gamma}


def test_parts_without_such_settings_are_left_alone():
    assert part_values(function_space(FSVI, prior=Constant(3.0), divergence=KL())) == {"prior_variance": 3.0}
    assert part_values(function_space(FSVI, prior=Empirical(mlp(1, (4,), 1)))) == {}


def test_an_argument_of_the_method_itself_is_passed_on():
    for method in (MAP(mlp(1, (4,), 1), Gaussian(0.1), prior_variance=2.0), function_space(FSEB, prior_variance=2.0)):
        assert part_arguments(method) == set()
        assert with_parts(method, {"prior_variance": 3.0}) == {"prior_variance": 3.0}
