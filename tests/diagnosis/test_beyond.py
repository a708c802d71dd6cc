import pytest
import torch
from scipy.stats import spearmanr

from fsvi.diagnosis.beyond import rank_correlation
from fsvi.diagnosis.evidence import distances


@pytest.mark.parametrize("levels", [3, 1000])
def test_rank_correlation_is_spearmans_with_ties(levels: int) -> None:
    a = torch.randint(levels, (50,)).double()
    b = a + torch.randint(levels, (50,)).double()
    assert rank_correlation(a, b) == pytest.approx(spearmanr(a, b).statistic, abs=1e-12)


def test_rank_correlation_with_a_constant_is_zero() -> None:
    assert rank_correlation(torch.arange(5.0), torch.ones(5)) == 0.0


def test_distances_to_the_nearest() -> None:
    data = torch.tensor([[0.0], [1.0], [4.0]])
    assert distances(torch.tensor([[0.5], [10.0], [4.0]]), data).tolist() == [0.5, 6.0, 0.0]
    assert distances(data, data, own=True).tolist() == [1.0, 1.0, 3.0]
