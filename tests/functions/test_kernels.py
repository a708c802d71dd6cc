import math

import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from torch.distributions import MultivariateNormal

import fsvi
from fsvi.errors import FileFormatError, InvalidInputError
from fsvi.functions import gaussian_kl
from fsvi.functions.kernels import fit_hyperparameters, log_marginal_likelihood, median_distance, rbf_kernel
from fsvi.functions.priors import GaussianProcess
from fsvi.networks import Network


def scalar(value):
    return torch.tensor(value, dtype=torch.float64)


def draw(num, lengthscale, variance, noise, targets=1, seed=0):
    """Inputs and targets drawn from the process itself."""
    generator = torch.Generator().manual_seed(seed)
    x = 4 * torch.rand(num, 1, generator=generator, dtype=torch.float64)
    covariance = rbf_kernel(x, scalar(lengthscale), scalar(variance)) + noise**2 * torch.eye(num)
    return x, torch.linalg.cholesky(covariance) @ torch.randn(num, targets, generator=generator, dtype=torch.float64)


def test_the_kernel_by_hand():
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    off = 2 * math.exp(-(5**2) / (2 * 2.5**2))
    expected = torch.tensor([[2.0, off], [off, 2.0]], dtype=torch.float64)
    torch.testing.assert_close(rbf_kernel(x, scalar(2.5), scalar(2.0)), expected)
    torch.testing.assert_close(rbf_kernel(x.view(2, 1, 2, 1), scalar(2.5), scalar(2.0)), expected)


def test_columns_with_lengthscales_of_their_own_by_hand():
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    kernel = rbf_kernel(x, scalar([1.5, 8.0]), scalar(2.0))
    assert float(kernel[0, 1]) == pytest.approx(2 * math.exp(-0.5 * (2**2 + 0.5**2)))


def test_the_median_distance_leaves_repeated_inputs_out():
    assert float(median_distance(torch.tensor([[0.0], [1.0], [3.0]]))) == 2.0
    assert float(median_distance(torch.tensor([[0.0], [0.0], [0.0], [5.0]]))) == 5.0
    assert float(median_distance(torch.zeros(4, 2))) == 1.0


def test_the_marginal_likelihood_is_a_gaussian_s():
    x, y = draw(7, 1.0, 1.0, 0.3, targets=2)
    kernel = rbf_kernel(x, scalar(0.8), scalar(1.5))
    noise = torch.tensor([0.1, 0.4], dtype=torch.float64)
    expected = sum(
        MultivariateNormal(torch.zeros(7, dtype=torch.float64), kernel + v * torch.eye(7)).log_prob(y[:, q])
        for q, v in enumerate(noise)
    )
    torch.testing.assert_close(log_marginal_likelihood(kernel, y, noise), expected)


def test_fitted_hyperparameters_are_at_least_as_likely_as_the_true_ones_and_close_to_them():
    """Five functions at 40 points each have some 30 degrees of freedom for the variance, known to exp(±0.25)."""
    x, y = draw(40, 0.7, 2.0, 0.2, targets=5)
    start = (scalar(2.0), scalar(1.0), torch.ones(5, dtype=torch.float64))
    lengthscale, variance, noise = fit_hyperparameters(x, y, start, learn_noise=True)

    def likelihood(lengthscale, variance, noise):
        return float(log_marginal_likelihood(rbf_kernel(x, lengthscale, variance), y, noise.square()))

    assert likelihood(lengthscale, variance, noise) > likelihood(scalar(0.7), scalar(2.0), 0.2 * torch.ones(5))
    assert abs(math.log(float(lengthscale) / 0.7)) < 0.2
    assert abs(math.log(float(variance) / 2.0)) < 0.5
    assert noise.shape == (5,) and abs(float(noise.log().mean()) - math.log(0.2)) < 0.2


def test_a_known_noise_stays():
    x, y = draw(20, 0.7, 1.0, 0.2)
    given = scalar([0.25])
    lengthscale, _, noise = fit_hyperparameters(x, y, (scalar(1.0), scalar(1.0), given), learn_noise=False)
    torch.testing.assert_close(noise, given)
    assert float(lengthscale) != 1.0


def test_repeated_inputs_and_targets_without_noise_can_be_fitted():
    x = torch.zeros(8, 1)
    y = torch.ones(8, 1)
    values = fit_hyperparameters(x, y, (scalar(1.0), scalar(1.0), scalar([1.0])), learn_noise=True)
    assert all(bool(value.isfinite().all()) for value in values)


@pytest.mark.filterwarnings("ignore:The optimal value found for dimension 2")  # the column that does not matter
def test_the_fit_is_scikit_learns():
    """Two columns that matter differently, and one that does not matter at all."""
    generator = torch.Generator().manual_seed(0)
    x = 4 * torch.rand(60, 3, generator=generator, dtype=torch.float64)
    y = (2 * x[:, :1]).sin() + 0.3 * x[:, 1:2] + 0.1 * torch.randn(60, 1, generator=generator, dtype=torch.float64)
    lengthscale, variance, noise = fit_hyperparameters(
        x, y, (torch.ones(3, dtype=torch.float64), scalar(1.0), scalar([0.5])), learn_noise=True
    )
    kernel = ConstantKernel(1.0, (1e-3, 1e3)) * RBF([1.0] * 3, (1e-2, 1e2)) + WhiteKernel(0.25, (1e-5, 1e3))
    theirs = GaussianProcessRegressor(kernel, alpha=1e-6, n_restarts_optimizer=4, random_state=0).fit(x, y[:, 0])
    ours = float(log_marginal_likelihood(rbf_kernel(x, lengthscale, variance), y, noise.square()))
    assert ours == pytest.approx(theirs.log_marginal_likelihood_value_, abs=0.05)
    assert float(lengthscale[0]) < 2 and float(lengthscale[1]) > 3 and float(lengthscale[2]) == pytest.approx(100)
    assert float(noise) == pytest.approx(0.1, rel=0.4)


# The prior -----------------------------------------------------------------------------------------------------------


def test_the_prior_at_points_is_the_kernel_for_every_output(make):
    net, x = make("mlp", 6)
    split = Network(net).examined(x)
    prior = GaussianProcess(lengthscale=1.3, variance=0.6)
    kernel = rbf_kernel(x, scalar(1.3), scalar(0.6))
    prior.bind(split)
    p = prior.gaussian(x)
    assert p.mean.shape == (6, 2) and not p.mean.any()
    torch.testing.assert_close(p.covariance(), kernel[None])
    joint = prior.gaussian(x).joint()
    assert joint.mean.shape == (12, 1)
    torch.testing.assert_close(joint.covariance()[0], torch.kron(kernel, torch.eye(2, dtype=torch.float64)))


def test_a_singular_kernel_is_no_obstacle(make):
    net, x = make("mlp", 3)
    prior = GaussianProcess(lengthscale=50.0)
    prior.bind(Network(net).examined(x))
    p = prior.gaussian(torch.cat([x, x, x]))
    assert bool((p.weight >= 0).all())
    assert float(gaussian_kl(p, p, 1e-4)) == pytest.approx(0, abs=1e-6)


def test_the_lengthscale_is_the_median_distance_unless_it_is_given():
    x = torch.tensor([[0.0], [1.0], [3.0]])
    found, given = GaussianProcess(variance=2.0), GaussianProcess(lengthscale=0.5)
    for prior in (found, given):
        prior.prepare(x)
    assert found.hyperparameters.tolist() == [2.0, 2.0] and given.hyperparameters.tolist() == [0.5, 1.0]


def test_fitting_moves_the_hyperparameters_however_often():
    x, y = draw(30, 0.5, 1.0, 0.1)
    prior = GaussianProcess(lengthscale=2.0)
    prior.fit(x, y, scalar([0.5]), learn_noise=True)
    start = (scalar([2.0]), y.square().mean(), scalar([0.5]))
    lengthscale, variance, _ = fit_hyperparameters(x, y, start, learn_noise=True)
    torch.testing.assert_close(prior.hyperparameters, torch.cat([lengthscale, variance[None]]))
    assert abs(float(prior.hyperparameters[0]) - 0.5) < 0.3
    before = prior.hyperparameters.clone()
    prior.fit(x, y, scalar([0.5]), learn_noise=True)
    assert torch.equal(prior.hyperparameters, before)


def test_the_scale_of_targets_and_the_place_of_inputs_do_not_matter():
    x, y = draw(30, 0.5, 1.0, 0.1)
    plain, moved = GaussianProcess(), GaussianProcess()
    plain.fit(x, y, scalar([0.5]), learn_noise=True)
    moved.fit(x + 1e6, 1e5 * y, scalar([5e4]), learn_noise=True)
    lengthscale, variance = plain.hyperparameters
    torch.testing.assert_close(moved.hyperparameters, torch.stack([lengthscale, 1e10 * variance]), rtol=1e-2, atol=0)


def test_columns_of_a_table_get_lengthscales_and_pictures_share_one():
    x, y = draw(12, 0.5, 1.0, 0.1)
    table, pictures = GaussianProcess(), GaussianProcess()
    table.fit(torch.cat([x, x.flip(0)], 1), y, scalar([0.5]), learn_noise=True)
    pictures.fit(x.expand(12, 4).reshape(12, 1, 2, 2), y, scalar([0.5]), learn_noise=True)
    assert table.hyperparameters.shape == (3,) and pictures.hyperparameters.shape == (2,)


@pytest.mark.parametrize("settings", [{"lengthscale": 0.0}, {"lengthscale": -1.0}, {"variance": 0.0}])
def test_bad_hyperparameters_are_refused(settings):
    with pytest.raises(InvalidInputError, match=next(iter(settings))):
        GaussianProcess(**settings)


def test_fsvi_takes_the_prior_and_a_file_keeps_what_it_found(make, tmp_path):
    net, x = make("mlp", 10)
    method = fsvi.FSVI(net, fsvi.Categorical(), context=fsvi.contexts.Batch(), prior=GaussianProcess(), num_context=5)
    fsvi.fit(method, (x, torch.arange(10) % 2), epochs=2)
    method.save(tmp_path / "gp.fsvi")
    loaded = fsvi.load(tmp_path / "gp.fsvi", make("mlp")[0])
    assert torch.equal(loaded.prior.hyperparameters, method.prior.hyperparameters)
    assert float(loaded.prior.hyperparameters[0]) == pytest.approx(float(median_distance(x)))


def regression(learn):
    net = fsvi.networks.mlp(2, (4,), 1)
    context = fsvi.contexts.Uniform([-3.0, -3.0], [3.0, 3.0])
    likelihood = fsvi.Gaussian(0.5, learn_noise=True)
    return fsvi.FSVI(net, likelihood, context, prior=GaussianProcess(learn=learn), num_context=4)


def table():
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    return x, x[:, :1].sin()


@pytest.mark.parametrize("learn", [False, True])
def test_fsvi_fits_the_process_where_it_is_told_to(learn):
    method = regression(learn)
    fsvi.fit(method, table(), epochs=1)
    assert method.prior.hyperparameters.shape == ((3,) if learn else (2,))
    assert not learn or method.prior.hyperparameters[0] < method.prior.hyperparameters[1]


def test_a_file_keeps_every_lengthscale(tmp_path):
    method = regression(learn=True)
    fsvi.fit(method, table(), epochs=1)
    method.save(tmp_path / "gp.fsvi")
    loaded = fsvi.load(tmp_path / "gp.fsvi")
    assert torch.equal(loaded.prior.hyperparameters, method.prior.hyperparameters)
    points = torch.zeros(1, 2)
    assert float(loaded.prior.gaussian(points).covariance()) == pytest.approx(float(method.prior.hyperparameters[-1]))


def test_a_file_with_too_many_lengthscales_is_refused_and_changes_nothing():
    method = regression(learn=True)
    fsvi.fit(method, table(), epochs=1)
    tensors, before = method.tensors(), method.prior.hyperparameters.clone()
    odd = [
        {**tensors, "function_space.prior.hyperparameters": torch.ones(6, dtype=torch.float64)},
        {**tensors, "function_space.prior.hyperparameters": before[:2], "likelihood.log_noise": torch.ones(4)},
    ]
    for each in odd:
        with pytest.raises(FileFormatError, match="fit"):
            method.load_tensors(each)
        assert torch.equal(method.prior.hyperparameters, before)


def test_a_noise_from_the_network_leaves_the_process_one():
    net = fsvi.networks.mlp(2, (4,), 2)
    likelihood = fsvi.Gaussian([0.1, 0.2], heteroscedastic=True)
    method = fsvi.FSVI(net, likelihood, fsvi.contexts.Batch(), prior=GaussianProcess(learn=True), num_context=4)
    fsvi.fit(method, table(), epochs=1)
    assert method.prior.hyperparameters.shape == (3,)


@pytest.mark.parametrize("method", [fsvi.FSVI, fsvi.FBNN, fsvi.SPG])
def test_a_process_cannot_be_fitted_to_classes(make, method):
    with pytest.raises(InvalidInputError, match="learn"):
        method(make("mlp")[0], fsvi.Categorical(), fsvi.contexts.Batch(), prior=GaussianProcess(learn=True))
