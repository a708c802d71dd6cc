"""One weight of the KL with one meaning: a number, 1/N, or t/N."""

import pytest
import torch

import fsvi
import scenarios
from fsvi.errors import InvalidInputError
from fsvi.functions.divergences import kl_weight_value
from fsvi.methods.registry import METHODS, make_method, setting_names

WEIGHTED = [name for name in METHODS if "kl_weight" in setting_names(name)]


def test_values():
    assert kl_weight_value(None, 50) == 1 / 50
    assert kl_weight_value(0.3, 50) == 0.3
    assert kl_weight_value(fsvi.Tempered(0.1), 50) == 0.1 / 50


@pytest.mark.parametrize("name", sorted({*WEIGHTED} - {"fsvi-fixed-mean"}))  # its KL is that of single points
def test_every_method_means_the_same(name):
    """The KL term of one step with N = 40: proportional to the weight, which None, t/N and a number spell alike."""
    x, y = scenarios.points(8)

    def kl(kl_weight):
        torch.manual_seed(0)
        method = make_method(name, scenarios.dense(), fsvi.Categorical(), context=scenarios.box(), kl_weight=kl_weight)
        method.num_data = 40
        torch.manual_seed(1)
        terms = method(x, y)
        return float(terms["function_prior" if name == "fs-eb" else "kl"].detach())

    elbo = kl(None)
    assert kl(1 / 40) == pytest.approx(elbo, rel=1e-5) and kl(fsvi.Tempered(1.0)) == pytest.approx(elbo, rel=1e-5)
    assert kl(0.5) == pytest.approx(20 * elbo, rel=1e-5) and kl(fsvi.Tempered(0.1)) == pytest.approx(
        0.1 * elbo, rel=1e-5
    )


def test_a_file_keeps_the_temperature(tmp_path):
    method = fsvi.MFVI(scenarios.dense(), fsvi.Categorical(), kl_weight=fsvi.Tempered(0.1))
    method.save(tmp_path / "cold.fsvi")
    assert fsvi.load(tmp_path / "cold.fsvi").kl_weight.temperature == 0.1


@pytest.mark.parametrize("name", WEIGHTED)
def test_impossible_weights_are_refused(name):
    for kl_weight in (-1.0, float("nan"), "1/N", True):
        with pytest.raises(InvalidInputError, match="kl_weight"):
            make_method(name, scenarios.dense(), fsvi.Categorical(), context=scenarios.box(), kl_weight=kl_weight)


def test_a_temperature_is_not_negative():
    with pytest.raises(InvalidInputError, match="temperature"):
        fsvi.Tempered(-0.1)
