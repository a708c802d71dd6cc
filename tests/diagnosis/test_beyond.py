from typing import Any

import pytest
import torch
from scipy.stats import spearmanr
from torch import nn

import fsvi
from fsvi.diagnosis import diagnose
from fsvi.diagnosis.beyond import rank_correlation
from fsvi.networks import mlp
from moons import MOONS, faults, moons_method, trained


@pytest.mark.parametrize("levels", [3, 1000])
def test_rank_correlation_is_spearmans_with_ties(levels: int) -> None:
    a = torch.randint(levels, (50,)).double()
    b = a + torch.randint(levels, (50,)).double()
    assert rank_correlation(a, b) == pytest.approx(spearmanr(a, b).statistic, abs=1e-12)


def test_rank_correlation_with_a_constant_is_zero() -> None:
    assert rank_correlation(torch.arange(5.0), torch.ones(5)) == 0.0


def test_context_inside_the_data() -> None:
    method = moons_method(context=fsvi.contexts.Dataset(MOONS[0]))
    trained(method)
    assert faults(diagnose(method, MOONS)) >= {"context", "distance"}


@pytest.mark.parametrize("context", [MOONS[0], fsvi.contexts.Batch()])
def test_another_context_can_be_asked_about(healthy: tuple[fsvi.FSVI, fsvi.History], context: Any) -> None:
    assert diagnose(healthy[0], MOONS, context)["context"].severity == "fault"


def test_one_network_is_uncertain_nowhere() -> None:
    method = fsvi.MAP(mlp(2, (30, 30), 2, nn.Tanh), fsvi.Categorical())
    trained(method, epochs=200)
    diagnosis = diagnose(method, MOONS)
    assert {finding.name for finding in diagnosis} == {"learning", "distance", "calibration"}
    assert "distance" in faults(diagnosis)
    assert "use FSVI" in diagnosis["distance"].advice
