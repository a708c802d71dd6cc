"""The report: tables next to the paper's, figures, and files that cannot be read."""

import re

import numpy as np
import pytest

from fsvi.errors import InvalidInputError
from made_results import make_result
from paper.columns import MeanOverSeeds
from paper.records import result_path, write_document, write_result
from paper.report import duration, errors_range, render, seed_range, write_report
from paper.report.figures import _FIGURES, build_figures
from paper.report.standing import build_standings, decisive_errors
from paper.report.tables import build_sections, build_tables


def test_a_cell_holds_ours_the_papers_and_the_difference():
    (table,) = build_tables([make_result(metrics={"accuracy": 0.9}, seed=seed) for seed in (0, 1)])
    row = next(row for row in table.rows if row.label == "map")
    cell = row.cells[0]
    assert cell.ours == MeanOverSeeds(90.0, 0.0, 2) and cell.paper is not None and table.source.startswith("Table 1")
    assert cell.difference == pytest.approx(90.0 - cell.paper.mean, abs=0.005)
    assert cell.difference_text.startswith("−") and cell.verdict == "worse" and row.seeds == [0, 1]
    assert row.seconds == 120.0
    assert any(not row.results for row in table.rows)  # the paper's other rows


def test_the_best_is_by_the_digits_shown_and_neither_of_equals():
    results = [make_result("map", metrics={"accuracy": 0.9}), make_result("mfvi", metrics={"accuracy": 0.9000001})]
    assert not any(row.cells[0].best for row in build_tables(results)[0].rows)
    results.append(make_result("swag", metrics={"accuracy": 0.91}))
    assert [row.label for row in build_tables(results)[0].rows if row.cells[0].best] == ["swag"]


def test_detection_by_the_methods_own_score_and_by_entropy():
    metrics = {"accuracy": 0.5, "auroc_own_mnist": 0.7, "auroc_entropy_mnist": 0.6}
    (table,) = build_tables([make_result("duq", metrics=metrics)])
    row = next(row for row in table.rows if row.label == "duq")
    cell = next(cell for cell in row.cells if cell.column.name == "auroc_mnist")
    assert cell.ours.mean == pytest.approx(70) and cell.by_entropy.mean == pytest.approx(60)


def test_notes_name_members_tasks_and_differing_settings():
    settings = {"method": {"settings": {"members": [1, 2, 3]}}, "fit": {"epochs": 30}}
    other = {"method": {"settings": {"members": [1, 2, 3], "new": 1}}, "fit": {"epochs": 20}}
    rows = [make_result("ensemble:map", settings=settings, notes=["a note"]) for _ in range(1)]
    rows += [make_result("ensemble:map", settings=other, seed=1, notes=["a note"])]
    (table,) = build_tables(rows)
    row = next(row for row in table.rows if row.label == "ensemble:map")
    assert row.notes == ["3 members", "a note", "settings differ between seeds"]


def test_sections_hold_their_own_results():
    results = [make_result(), make_result(profile="smoke"), make_result(task="retina"), make_result(task="my-task")]
    sections = {section.name: section for section in build_sections(results)}
    assert list(sections) == ["fashion-mnist", "retina", "my-task"]
    assert [part.profile for part in sections["fashion-mnist"].parts] == ["paper", "smoke"]
    assert [len(part.results) for part in sections["fashion-mnist"].parts] == [1, 1]


def results_of(method, values, **changes):
    return [make_result(method, seed=seed, metrics={"accuracy": value}, **changes) for seed, value in enumerate(values)]


def test_standings_pair_seeds_and_use_students_t():
    """Paired differences of 1, 1 and 1.3 points: 11 standard errors, beyond the 4.3 that 3 seeds need."""
    results = results_of("fsvi", [0.91, 0.81, 0.713], context="kmnist") + results_of("map", [0.90, 0.80, 0.70])
    (standing,) = build_standings(build_sections(results))
    (each,) = standing.comparisons
    assert standing.label == "map" and each.gain == pytest.approx(1.1) and each.errors == pytest.approx(11.0)
    assert each.verdict == "win" and decisive_errors(3) == pytest.approx(4.3027, abs=1e-4)


def test_one_seed_only_says_who_is_ahead():
    results = results_of("fsvi", [0.91], context="kmnist") + results_of("map", [0.92]) + results_of("mfvi", [0.91])
    verdicts = {each.label: each.comparisons[0].verdict for each in build_standings(build_sections(results))}
    assert verdicts == {"map": "behind", "mfvi": "even"}


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
    from paper.experiment import Order

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
        assert "<script>alert" not in text and "alert(1)" in text
        assert "It is off. Train longer." in text and "FashionMNIST" in text
    assert html.count("data:image/svg+xml") == 1 and not re.search(r'(src|href)="(?!#|data:|https://arxiv)', html)
    assert sum("same run" in line for line in said) == 1 and sum("damaged.json" in line for line in said) == 1
    assert said[-1].startswith("1 results.")


def test_an_empty_folder_is_one_sentence(tmp_path):
    with pytest.raises(InvalidInputError, match="no results"):
        write_report(tmp_path, tmp_path)


def test_markdown_templates_can_be_elsewhere(tmp_path):
    (tmp_path / "page.md.jinja").write_text('{% import "tables.md" as tables with context %}{{ "<b>" }} {{ number }}')
    assert render("page.md.jinja", tmp_path, number=2) == "&lt;b> 2"


def test_numbers_as_text():
    assert (seed_range([0, 1, 2]), seed_range([3]), seed_range([0, 2])) == ("0–2", "3", "0, 2")
    assert (duration(30), duration(600), duration(7200)) == ("30 s", "10 min", "2.0 h")
    assert (errors_range([1.0, -2.0]), errors_range([1000.0])) == ("−2.0 to +1.0", "≥ +100")


def test_committed_results_can_be_read():
    from paper.__main__ import HERE
    from paper.records import Result, read_results

    found = dict(read_results(HERE / "results"))
    assert len(found) >= 472 and all(isinstance(each, Result) for each in found.values())
