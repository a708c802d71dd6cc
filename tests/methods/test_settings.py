"""Settings that no method can work with are refused by their names."""

import math

import pytest
from torch import nn

import fsvi
import scenarios
from fsvi.errors import InvalidInputError

BAD = [
    (fsvi.MAP, dict(prior_variance=0.0)),
    (fsvi.MAP, dict(prior_variance=math.inf)),
    (fsvi.FSVI, dict(num_context_sets=0)),
    (fsvi.FSVI, dict(num_samples=1.5)),
    (fsvi.MFVI, dict(prior_variance=0.0)),
    (fsvi.MFVI, dict(num_samples=0)),
    (fsvi.MCDropout, dict(rate=1.0)),
    (fsvi.MCDropout, dict(rate=math.nan)),
    (fsvi.MCDropout, dict(rate="half")),
    (fsvi.SWAG, dict(rank=1)),
    (fsvi.SWAG, dict(start=-0.1)),
    (fsvi.SWAG, dict(collect_every=0)),
    (fsvi.SWAG, dict(num_models=0)),
    (fsvi.DUQ, dict(length_scale=0.0)),
    (fsvi.DUQ, dict(gradient_penalty=-1.0)),
    (fsvi.DUQ, dict(momentum=1.0)),
    (fsvi.Laplace, dict(structure="full")),
    (fsvi.Laplace, dict(prior_variance=None, optimize_prior=False)),
    (fsvi.VOGN, dict(momentum=1.0)),
    (fsvi.VOGN, dict(damping=-1.0)),
    (fsvi.IVON, dict(scale_rate=1.0)),
    (fsvi.IVON, dict(initial_scale=-1.0)),
    (fsvi.IVON, dict(clip=0.0)),
    (fsvi.IVON, dict(kl_weight=0.0)),
    (fsvi.Rank1, dict(num_components=0)),
    (fsvi.Rank1, dict(prior_std=0.0)),
    (fsvi.Rank1, dict(stds=fsvi.posteriors.Stds())),
    (fsvi.SPG, dict(num_latents=0)),
    (fsvi.SPG, dict(num_prior_steps=0)),
    (fsvi.SPG, dict(prior_lr=0.0)),
    (fsvi.SPG, dict(stds=fsvi.posteriors.Stds())),
    (fsvi.FBNN, dict(num_samples=1)),
    (fsvi.FBNN, dict(injected_noise=0.0)),
    (fsvi.FBNN, dict(fraction=1.0)),
    (fsvi.FSEB, dict(nugget=0.0)),
    (fsvi.FSEB, dict(num_context=0)),
    (fsvi.SFSVI, dict(coreset=-1)),
]


@pytest.mark.parametrize(("cls", "settings"), BAD)
def test_a_setting_that_means_nothing_is_refused_by_its_name(cls, settings):
    with pytest.raises(InvalidInputError, match=next(iter(settings))):
        cls(nn.Linear(2, 2), fsvi.Categorical(), **settings)


@pytest.mark.parametrize("cls", [fsvi.SPG, fsvi.FBNN])
def test_a_context_is_needed(cls):
    with pytest.raises(InvalidInputError, match="context="):
        fsvi.fit(cls(scenarios.dense(), fsvi.Categorical()), scenarios.points(), epochs=1)


@pytest.mark.parametrize("size", [0, 1.5])
def test_the_size_of_an_ensemble_is_a_whole_number(size):
    with pytest.raises(InvalidInputError, match="size"):
        fsvi.Ensemble(lambda: fsvi.MAP(nn.Linear(2, 2), fsvi.Categorical()), size)
