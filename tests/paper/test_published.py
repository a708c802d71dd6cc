"""The paper's tables are whole, and our rows find theirs."""

import pytest

from fsvi.methods.registry import check_method
from paper.columns import MeanOverSeeds
from paper.published import PAPER


@pytest.mark.parametrize(
    "task, label, metric, mean, error",
    [
        ("fashion-mnist", "fsvi (kmnist)", "accuracy", 93.48, 0.12),
        ("fashion-mnist", "fsvi (kmnist)", "ece_15", 0.010, 0.001),
        ("fashion-mnist", "ensemble:map", "auroc_notmnist", 83.17, 0.91),
        ("cifar10", "ensemble:fsvi (monochrome)", "accuracy_corrupted", 81.35, 0.48),
        ("cifar10", "fsvi (cifar100)", "auroc_svhn", 98.07, 0.10),
        ("retina", "fsvi", "auroc", 88.5, 0.1),
        ("retina", "mc-dropout", "accuracy_referred_70", 98.1, 0.0),
        ("retina", "ensemble:rank1", "auroc_referred_50_shifted", 94.9, 0.4),
        ("uci-boston", "fbnn", "rmse", 2.378, 0.104),
        ("uci-protein", "fsvi", "log_likelihood", -2.866, 0.009),
    ],
)
def test_figures_are_those_of_the_paper(task, label, metric, mean, error):
    assert PAPER[task].rows[label][metric] == MeanOverSeeds(mean, error)


def test_what_the_paper_leaves_out_is_absent():
    assert "ece_15" not in PAPER["fashion-mnist"].rows["duq"]
    assert "auroc_notmnist" not in PAPER["fashion-mnist"].rows["laplace"]


def test_every_row_is_a_method_of_ours():
    for table in PAPER.values():
        for label in table.rows:
            check_method(label.partition(" (")[0])


def test_a_label_finds_its_row_by_context_where_the_paper_names_one():
    fashion, retina = PAPER["fashion-mnist"], PAPER["retina"]
    assert fashion.row("fsvi (kmnist)") == "fsvi (kmnist)"
    assert fashion.row("fsvi (corrupted)") is None
    assert retina.row("fsvi (monochrome)") == "fsvi"
    assert retina.row("ensemble:fsvi (monochrome)") == "ensemble:fsvi"


def test_rows_that_none_of_ours_compares_with():
    assert PAPER["uci-wine"].rows_without(["fsvi (uniform)", "map"]) == ["fbnn"]
    assert PAPER["uci-wine"].rows_without([]) == ["fbnn", "fsvi"]
