"""What must hold whatever the shapes, types, numbers of classes, context points, context sets and samples."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import fsvi
from fsvi.likelihoods import CategoricalPredictive, Predictive, mixture

bounded = settings(
    max_examples=5, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
seeds = st.integers(0, 2**16)
dtypes = st.sampled_from([torch.float32, torch.float64])


@dataclass(frozen=True)
class Case:
    """A network, FSVI's settings, and data that fit them."""

    seed: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    outputs: int
    num_data: int
    settings: dict[str, Any]

    def net(self) -> nn.Module:
        torch.manual_seed(self.seed)
        if len(self.shape) == 1:
            layers: list[nn.Module] = [nn.Linear(*self.shape, 4), nn.Tanh(), nn.Linear(4, self.outputs)]
        else:
            layers = [nn.Conv2d(self.shape[0], 2, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
            layers.append(nn.Linear(8, self.outputs))
        return nn.Sequential(*layers).to(self.dtype)

    def inputs(self, num: int | None = None) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randn(num or self.num_data, *self.shape, generator=generator).to(self.dtype)

    def labels(self) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed + 1)
        return torch.randint(self.outputs, (self.num_data,), generator=generator)

    def targets(self) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed + 1)
        return torch.randn(self.num_data, self.outputs, generator=generator).to(self.dtype)

    def classifier(self) -> fsvi.FSVI:
        return fsvi.FSVI(self.net(), fsvi.Categorical(), context=fsvi.contexts.Uniform(-3, 3), **self.settings)

    def regressor(self, **noise: Any) -> fsvi.FSVI:
        context = fsvi.contexts.Uniform(-3, 3)
        return fsvi.FSVI(self.net(), fsvi.Gaussian(**noise), context=context, **self.settings)


@st.composite
def cases(draw: st.DrawFn, least_outputs: int = 2, most_outputs: int = 12) -> Case:
    flat = st.tuples(st.integers(1, 5))
    image = st.tuples(st.integers(1, 3), st.integers(3, 5), st.integers(3, 5))
    choices = {
        "num_context": draw(st.integers(1, 7)),
        "num_context_sets": draw(st.integers(1, 3)),
        "num_samples": draw(st.integers(1, 3)),
        "divergence": fsvi.divergences.KL(
            covariance=draw(st.sampled_from(["full", "diagonal"])), num_draws=draw(st.integers(1, 2))
        ),
        "stochastic": draw(st.sampled_from(["all", "last_layer"])),
        "linearize": draw(st.sampled_from(["jvp", "conditional", "exact"])),
    }
    return Case(
        draw(seeds),
        draw(dtypes),
        draw(st.one_of(flat, flat, image)),
        draw(st.integers(least_outputs, most_outputs)),
        draw(st.integers(1, 9)),
        choices,
    )


def tolerance(tensor: Tensor) -> float:
    """Rounding of a sum of a dozen numbers of order one."""
    return 50 * torch.finfo(tensor.dtype).eps


# Learning -----------------------------------------------------------------------------------------------------------


@bounded
@given(cases(), st.integers(1, 6))
def test_the_kl_is_finite_and_not_negative(case, points):
    method = case.classifier()
    kl = method.function_kl(case.inputs(points))
    assert kl.shape == () and kl.dtype == torch.float64
    assert kl.isfinite() and kl >= -1e-9


@bounded
@given(cases())
def test_the_kl_of_the_posterior_from_itself_is_no_more_than_rounding(case):
    """Against the prior that it is, a last layer's posterior has lost nothing."""
    first = fsvi.FSVI(case.net(), fsvi.Categorical(), **{**case.settings, "stochastic": "last_layer"})
    prior = fsvi.priors.Empirical(first)
    again = fsvi.FSVI(case.net(), fsvi.Categorical(), prior=prior, **{**case.settings, "stochastic": "last_layer"})
    assert again.function_kl(case.inputs(4)).abs() < 1e-3


@bounded
@given(cases(), st.sampled_from(["labels", "targets"]))
def test_the_loss_is_a_finite_scalar_whose_gradient_is_finite(case, kind):
    method = case.classifier() if kind == "labels" else case.regressor()
    loss = sum(method(case.inputs(), getattr(case, kind)()).values())
    assert loss.shape == () and loss.isfinite()
    loss.backward()
    gradients = [parameter.grad for parameter in method.parameters() if parameter.grad is not None]
    assert gradients and all(bool(gradient.isfinite().all()) for gradient in gradients)


# Predicting ---------------------------------------------------------------------------------------------------------


def assert_is_a_distribution(predicted: CategoricalPredictive) -> None:
    mean, samples = predicted.mean, predicted.samples
    slack, largest = tolerance(mean), math.log(mean.shape[-1])
    torch.testing.assert_close(mean.sum(-1), torch.ones_like(mean[:, 0]), rtol=0, atol=slack)
    assert bool((mean >= samples.amin(0) - slack).all() and (mean <= samples.amax(0) + slack).all())
    for entropy in (predicted.entropy(), predicted.expected_entropy()):
        assert bool((entropy >= 0).all() and (entropy <= largest + slack).all())
    information = predicted.mutual_information()
    assert bool((information >= 0).all() and (information <= predicted.entropy() + slack).all())
    difference = predicted.entropy() - predicted.expected_entropy()
    torch.testing.assert_close(information, difference, rtol=0, atol=4 * largest * slack)


@bounded
@given(cases(), st.integers(1, 7))
def test_class_probabilities_are_a_distribution(case, draws):
    predicted = case.classifier().predict(case.inputs(), num_samples=draws)
    assert predicted.samples.shape == (draws, case.num_data, case.outputs)
    assert predicted.samples.dtype == case.dtype
    assert_is_a_distribution(predicted)


@bounded
@given(cases(least_outputs=1, most_outputs=4), st.integers(1, 7), st.booleans())
def test_real_targets_have_a_variance_of_at_least_the_noise(case, draws, learn_noise):
    method = case.regressor(noise=0.3, learn_noise=learn_noise)
    predicted = method.predict(case.inputs(), num_samples=draws)
    assert predicted.mean.shape == predicted.variance.shape == (case.num_data, case.outputs)
    assert bool((predicted.function_variance >= 0).all())
    assert bool((predicted.variance >= 0.09 * (1 - 1e-6)).all())
    assert bool(predicted.log_prob(case.targets()).isfinite().all())


@bounded
@given(cases(most_outputs=4), st.integers(1, 4), st.integers(1, 4))
def test_a_mixture_weighs_its_parts_by_their_draws(case, first, second):
    method = case.classifier()
    parts: list[Predictive] = [method.predict(case.inputs(), draws, seed=draws) for draws in (first, second)]
    expected = (first * parts[0].mean + second * parts[1].mean) / (first + second)
    torch.testing.assert_close(mixture(parts).mean, expected, rtol=0, atol=tolerance(expected))
    assert len(mixture(parts)) == case.num_data


# Files --------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:all . labels")  # cases may have a single label
@bounded
@given(cases(most_outputs=5), st.sampled_from(["classifier", "regressor"]))
def test_a_saved_method_predicts_the_same_bits(tmp_path_factory, case, kind):
    method = getattr(case, kind)()
    y = case.labels() if kind == "classifier" else case.targets()
    fsvi.fit(method, (case.inputs(), y), epochs=1, batch_size=4, progress=False)
    path = tmp_path_factory.mktemp("saved") / "method.fsvi"
    method.save(path)
    before, after = (m.predict(case.inputs(), 3).samples for m in (method, fsvi.load(path, case.net())))
    assert torch.equal(before, after)
