"""The report: tables next to published ones, like with like, figures, and files that cannot be read."""

import re

import numpy as np
import pytest
from scipy import stats

import fsvi
from fsvi.errors import InvalidInputError
from fsvi.methods.registry import METHODS
from made_results import make_result
from paper.__main__ import HERE
from paper.columns import Column, detection
from paper.experiment import Order
from paper.methods import TITLES, full_name
from paper.records import Result, duration, read_results, result_path, write_document, write_result
from paper.report import build_parts, write_report
from paper.report.figures import _FIGURES, build_figures
from paper.report.tables import PUBLISHED, column_means, compare_like_with_like, published, published_row


def table_of(results):
    ((table,),) = [part.tables for part in build_parts(results)]
    return table


def test_a_cell_holds_ours_the_papers_and_the_difference():
    table = table_of([make_result(metrics={"accuracy": 0.9}, seed=seed) for seed in (0, 1)])
    assert table.frame.loc["MAP", "Accuracy ↑"] == "90.00 ± 0.00 / 91.73 ± 0.08 / −1.73"
    assert table.frame.loc["MAP", ["Seeds", "Time"]].tolist() == ["2", "2 min"] and table.source.startswith("Table 1")
    assert table.frame.loc["SWAG", "Accuracy ↑"] == "not run / 92.56 ± 0.05 / –"
    assert "| MAP | 90.00 ± 0.00 / 91.73" in table.markdown() and "<td>90.00 ± 0.00 / 91.73" in table.html()


def test_the_best_is_by_the_digits_shown_and_neither_of_equals():
    results = [make_result("map", metrics={"accuracy": 0.9}), make_result("mfvi", metrics={"accuracy": 0.9000001})]
    assert not table_of(results).frame["Accuracy ↑"].str.contains("*", regex=False).any()
    results.append(make_result("swag", metrics={"accuracy": 0.91}))
    best = table_of(results).frame["Accuracy ↑"].str.contains("**", regex=False)
    assert best.index[best].tolist() == ["SWAG"] and "<b>91.00</b>" in table_of(results).html()


def test_detection_by_the_methods_own_score_and_by_entropy():
    metrics = {"auroc_mnist": 0.6, "auroc_own_mnist": 0.7, "auroc_entropy_mnist": 0.6}
    shown = table_of([make_result("duq", metrics=metrics)]).frame.loc["DUQ", "AUROC MNIST ↑"]
    assert shown.startswith("70.00 (by entropy 60.00) / 95.50")
    assert detection("fashion-mnist", "mnist", "").value(make_result(metrics={"auroc_mnist": 0.7})) == pytest.approx(70)


def test_means_and_standard_errors_are_scipys_and_of_one_task():
    values = np.random.default_rng(0).normal(size=7)
    results = [make_result(task="snelson", metrics={"rmse": value}) for value in values]
    results += [make_result(task="oat1d", metrics={"rmse": 9.0}), make_result(task="snelson", metrics={"rmse": None})]
    found = column_means(Column("snelson", "rmse", "RMSE"), results).loc["map"]
    assert found.tolist() == pytest.approx([values.mean(), stats.sem(values), 7])


def test_notes_name_members_and_tasks():
    settings = {"method": {"settings": {"members": [1, 2, 3]}}}
    assert table_of([make_result("ensemble:map", settings=settings, notes=["a note"])]).notes == [
        "Deep ensemble: 3 members; a note"
    ]
    notes = {"uci-wine": ["one", "both"], "uci-yacht": ["both", "other"]}
    results = [make_result(task=task, notes=notes[task], metrics={"rmse": 1.0}) for task in notes]
    assert table_of(results).notes[-1] == "MAP: wine: one; both; yacht: other"


def test_parts_hold_their_own_results():
    results = [make_result(), make_result(profile="smoke"), make_result(task="retina")]
    parts = [(part.section.title, part.profile, len(part.results)) for part in build_parts(results)]
    names = [
        ("FashionMNIST", "paper"),
        ("FashionMNIST", "smoke"),
        ("Diabetic retinopathy", "paper"),
    ]
    assert parts == [(*each, 1) for each in names]


def test_like_is_compared_with_like():
    """The best of single networks is not that of ensembles; a missing run is named, and FSVI has the most seeds."""
    results = [
        make_result(method, context, seed, metrics={"accuracy": value})
        for method, context, values in (
            ("fsvi", "monochrome", [0.99]),
            ("fsvi", "kmnist", [0.93, 0.95]),
            ("map", None, [0.92]),
            ("ensemble:map", None, [0.98]),
        )
        for seed, value in enumerate(values)
    ]
    table = compare_like_with_like(results)
    row = table.frame.loc["FashionMNIST, Accuracy ↑"]
    assert row.tolist() == [
        "**94.00 ± 1.00** (2)",
        "not run",
        "not run",
        "92.00 (1)",
        "not run",
        "not run",
        "98.00 (1)",
    ]
    assert table.notes == ["FashionMNIST: FSVI (KMNIST)"] and compare_like_with_like([]) is None


@pytest.mark.parametrize(
    "task, label, metric, mean, error",
    [
        ("fashion-mnist", "fsvi (kmnist)", "accuracy", 93.48, 0.12),
        ("retina", "ensemble:rank1", "auroc_referred_50_shifted", 94.9, 0.4),
        ("uci-protein", "fsvi", "log_likelihood", -2.866, 0.009),
        ("posthoc-resnet20", "fmgp", "nll_rotated_90", 2.348, None),
    ],
)
def test_published_figures(task, label, metric, mean, error):
    assert published(task, label, metric) == (mean, error)


def test_published_rows():
    assert (
        published("fashion-mnist", "duq", "ece_15") is None and published_row("fashion-mnist", "fsvi (batch)") is None
    )
    for task, table in PUBLISHED.items():
        for label, cells in table["rows"].items():
            assert len(cells) == len(table["columns"])
            if not task.startswith("posthoc"):
                assert label.partition(" (")[0].removeprefix("ensemble:") in METHODS


CURVES = {
    "reliability": {"confidence": [0.2, None, 0.9], "accuracy": [0.3, None, 0.8]},
    "entropy": {"test": [0.9, 0.1], "mnist": [0.2, 0.8]},
    "rotation": {"degrees": [0, 90], "brier": [0.1, 0.5], "entropy": [0.1, 1.0], "accuracy": [0.9, 0.3]},
    "corruption": {"severity": [1, 5], "brier": [0.1, 0.5], "entropy": [0.1, 1.0], "accuracy": [0.9, 0.3]},
    "roc": {"in_domain": {"fpr": [0, 1], "tpr": [0, 1]}},
    "referral": {"in_domain": {"rate": [0, 0.5], "accuracy": [0.8, None], "auroc": []}},
    "forgetting": {"task": [1, 2], "mean": [0.9, 0.8], "first": [0.9, 0.7]},
    "picture": {
        "kind": "curve",
        "x": [0.0, 1.0],
        "y": [0.0, 1.0],
        "zoomed": {key: [0.0, 1.0] for key in ("x", "mean", "function_std", "target_std")},
        "wide": {key: [0.0, 1.0] for key in ("x", "mean", "function_std", "target_std")},
    },
}
SURFACE = {
    "kind": "surface",
    "x": [[0.0, 0.0], [1.0, 1.0]],
    "y": [0, 1],
    "axis": [0.0, 1.0],
    "mean": np.full((2, 2), 0.5).tolist(),
    "variance": np.full((2, 2), 0.1).tolist(),
}


def test_every_curve_is_drawn():
    assert set(CURVES) == set(_FIGURES)
    made = build_figures([make_result(curves=CURVES), make_result("fsvi", curves=CURVES)])
    assert [title for title, *_ in made] == [title for title, *_ in _FIGURES.values()]
    assert all(image.startswith("<img alt=") for *_, image in made)
    assert len(build_figures([make_result(curves={"picture": SURFACE})])) == 1


def test_a_report_of_a_folder(tmp_path):
    result = make_result(notes=["<script>alert(1)</script>"], curves={"forgetting": CURVES["forgetting"]})
    path = result_path(tmp_path, Order("fashion-mnist", "map"))
    write_result(path, result)
    finding = {"name": "calibration", "severity": "fault", "sentence": "It is off.", "advice": "Train longer."}
    write_document(path.with_suffix(".diagnosis.json"), {"findings": [finding, {**finding, "severity": "ok"}]})
    (path.parent / "the-same.json").write_bytes(path.read_bytes())
    (path.parent / "damaged.json").write_text("{")
    said = []
    page = write_report(tmp_path, tmp_path / "out", said.append)
    html, markdown = page.read_text(), page.with_suffix(".md").read_text()
    for text in (html, markdown):
        assert "<script>alert" not in text and "alert(1)" in text and "Like with like" in text
        assert "It is off. Train longer." in text and "FashionMNIST" in text
    assert html.count("data:image/png") == 1 and not re.search(r'(src|href)="(?!#|data:|https://arxiv)', html)
    assert sum("same run" in line for line in said) == 1 and sum("damaged.json" in line for line in said) == 1
    assert said[-1].startswith("1 results.")


def test_an_empty_folder_is_one_sentence(tmp_path):
    with pytest.raises(InvalidInputError, match="no results"):
        write_report(tmp_path, tmp_path)


def test_numbers_and_names_as_text():
    assert [duration(each) for each in (30, 600, 7200)] == ["30 s", "10 min", "2.0 h"]
    labels = ("map", "ensemble:map", "fsvi (kmnist)", "ensemble:fsvi (monochrome)", "something-new")
    names = ["MAP", "Deep ensemble", "FSVI (KMNIST)", "FSVI ensemble (monochrome)", "something-new"]
    assert [full_name(label) for label in labels] == names
    assert set(TITLES) >= set(fsvi.methods.registry.METHODS)


def test_committed_results_can_be_read():
    found = dict(read_results(HERE / "results"))
    assert len(found) >= 502 and all(isinstance(each, Result) for each in found.values())
