"""SWAG: what is collected and when, BatchNorm's statistics, and what predicts."""

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import fsvi
import scenarios

X, Y = scenarios.points(32)


def dense(outputs: int = 2) -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, outputs))


def normalised() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2))


class Recording(fsvi.SWAG):
    """Keeps a copy of the parameters after every step and every epoch."""

    def __init__(self, net: nn.Module, likelihood: fsvi.likelihoods.Likelihood, **settings) -> None:
        super().__init__(net, likelihood, **settings)
        self.steps_seen: list[dict[str, Tensor]] = []
        self.epochs_seen: list[dict[str, Tensor]] = []

    def after_step(self) -> None:
        super().after_step()
        self.steps_seen.append(self._now())

    def after_epoch(self, batches) -> None:
        super().after_epoch(batches)
        self.epochs_seen.append(self._now())

    def _now(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in self.named_parameters() if p.requires_grad}


def fitted(method: fsvi.SWAG, data=(X, Y), **settings) -> fsvi.SWAG:
    fsvi.fit(method, data, **{"epochs": 8, "batch_size": 10, "schedule": None, **settings})
    return method


def check_moments(method: Recording, seen: list[dict[str, Tensor]]) -> None:
    assert int(method.gaussian.count) == len(seen)
    mean = method._layout.views(method.gaussian.mean)
    every = {name: torch.stack([parameters[name] for parameters in seen]) for name in seen[0]}
    spread = method._layout.flatten({name: values.var(0, correction=0) for name, values in every.items()})
    for name, values in every.items():
        torch.testing.assert_close(mean[name], values.mean(0))
    torch.testing.assert_close(method.gaussian.variances, spread[: len(method.gaussian.squares)], rtol=1e-3, atol=1e-10)


# What is collected ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "first"), [(0.0, 1), (0.5, 4), (0.6, 5), (0.99, 8)])
def test_epochs_are_collected_from_the_start_on(start, first):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        method = fitted(Recording(dense(), fsvi.Categorical(), start=start))
    check_moments(method, method.epochs_seen[first - 1 :])


def test_steps_are_collected_every_so_many():
    method = fitted(Recording(dense(), fsvi.Categorical(), start=0.5, collect_every=3))
    # 8 epochs of 4 steps: half are done after step 16, which counts
    check_moments(method, method.steps_seen[15:][2::3])


def test_deviations_are_from_the_mean_at_the_time():
    method = fitted(Recording(dense(), fsvi.Categorical(), start=0.0, rank=3))
    vectors = torch.stack([method._layout.flatten(seen) for seen in method.epochs_seen])
    expected = torch.stack([vectors[i] - vectors[: i + 1].mean(0) for i in range(len(vectors))])[-3:]
    torch.testing.assert_close(method.gaussian.deviations.sort(0)[0], expected.sort(0)[0], rtol=1e-3, atol=1e-6)


def test_a_learned_noise_is_averaged_and_not_drawn():
    noise = fsvi.Gaussian(noise=0.5, learn_noise=True)
    method = fitted(Recording(dense(1), noise, start=0.25), scenarios.curve(32))
    seen = [s["likelihood.log_noise"] for s in method.epochs_seen[1:]]
    torch.testing.assert_close(method.likelihood.log_noise.data, torch.stack(seen).mean(0))
    assert method.predict(X, 4).noise_variance.unique().numel() == 1


def test_after_training_the_network_holds_the_mean():
    method = fitted(Recording(dense(), fsvi.Categorical(), start=0.25))
    seen = [s["net.0.weight"] for s in method.epochs_seen[1:]]
    torch.testing.assert_close(method.net[0].weight.data, torch.stack(seen).mean(0))


def test_training_again_starts_collecting_again():
    method = fitted(fsvi.SWAG(dense(), fsvi.Categorical(), collect_every=2))
    count, steps = int(method.gaussian.count), int(method.steps)
    fitted(method)
    assert (int(method.gaussian.count), int(method.steps)) == (count, steps)


# What predicts -------------------------------------------------------------------------------------------------------


def test_draws_of_the_function_are_the_network_at_draws_of_the_gaussian():
    method = fitted(fsvi.SWAG(dense(), fsvi.Categorical()))
    generator = torch.Generator().manual_seed(3)
    for draw in method.predict(X, 3, seed=3).log_probs:
        tensors = method._layout.views(method.gaussian.draw(generator))
        params = {name.removeprefix("net."): value for name, value in tensors.items()}
        torch.testing.assert_close(draw, functional_call(method.net, params, (X,)).log_softmax(-1).detach())


def test_before_anything_is_collected_it_predicts_as_map():
    net = dense()
    expected = fsvi.MAP(net, fsvi.Categorical()).predict(X).log_probs
    assert torch.equal(fsvi.SWAG(net, fsvi.Categorical()).predict(X).log_probs, expected)


def test_validation_works_while_collecting():
    history = fsvi.fit(fsvi.SWAG(normalised(), fsvi.Categorical(), num_models=2), (X, Y), epochs=6, validation=(X, Y))
    assert len(history.validation) == 6


@pytest.mark.parametrize(("epochs", "every", "count"), [(1, None, 1), (2, 100, 0)])
def test_too_few_networks_warn(epochs, every, count):
    method = fsvi.SWAG(dense(), fsvi.Categorical(), collect_every=every)
    with pytest.warns(UserWarning, match=f"{count} networks"):
        fitted(method, epochs=epochs)
    assert bool(method.predict(X, 3).mean.isfinite().all())


# BatchNorm -----------------------------------------------------------------------------------------------------------


def test_every_settled_draw_has_statistics_of_its_own():
    method = fitted(fsvi.SWAG(normalised(), fsvi.Categorical(), num_models=4), batch_size=32)
    for index in range(4):
        tensors = method._net_params(method._settled_draw(index))
        hidden = functional_call(method.net[0], {"weight": tensors["0.weight"], "bias": tensors["0.bias"]}, (X,))
        kept = method._norms.views(method.statistics[index])
        torch.testing.assert_close(kept["1.running_mean"], hidden.mean(0).detach(), atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(kept["1.running_var"], hidden.var(0).detach())


def test_statistics_are_the_average_over_batches():
    method = fitted(fsvi.SWAG(normalised(), fsvi.Categorical(), num_models=2))
    batches = [(X[:16], Y[:16]), (X[16:], Y[16:])]
    row = method._compute_statistics(method.gaussian.mean, batches)
    variances = [method.net[0](x).var(0) for x, _ in batches]
    expected = torch.stack(variances).mean(0).detach()
    torch.testing.assert_close(method._norms.views(row)["1.running_var"], expected)
    assert method.net[1].momentum == 0.1


def test_settled_draws_predict_with_their_statistics():
    method = fitted(fsvi.SWAG(normalised(), fsvi.Categorical(), num_models=3))
    order = torch.randperm(3, generator=torch.Generator().manual_seed(5))
    draws = method.predict(X, 2, seed=5).log_probs
    for draw, index in zip(draws, order.tolist(), strict=False):
        statistics = method._norms.views(method.statistics[index])
        tensors = {**method._net_params(method._settled_draw(index)), **statistics}
        torch.testing.assert_close(draw, functional_call(method.net.eval(), tensors, (X,)).log_softmax(-1).detach())
    assert len(method.predict(X, 100).samples) == 3


def test_batch_norm_scale_and_shift_are_averaged_and_not_drawn():
    method = fitted(Recording(normalised(), fsvi.Categorical(), num_models=2, start=0.25))
    seen = torch.stack([s["net.1.weight"] for s in method.epochs_seen[1:]])
    for index in range(2):
        torch.testing.assert_close(method._net_params(method._settled_draw(index))["1.weight"], seen.mean(0))


def test_the_mean_network_has_statistics_of_its_own():
    method = fitted(fsvi.SWAG(normalised(), fsvi.Categorical(), num_models=2), batch_size=32)
    torch.testing.assert_close(method.net[1].running_var, method.net[0](X).var(0).detach())


# Bad input -----------------------------------------------------------------------------------------------------------
