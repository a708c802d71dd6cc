"""The report of a folder of results: what it shows, and what it does with files that it cannot use."""

import html
import math

import pytest

from fsvi.diagnosis import Diagnosis, Finding
from fsvi.errors import InvalidInputError
from made_results import make_result
from pages import Page
from paper.experiment import PROFILES, Order
from paper.records import Result, result_path, write_result
from paper.report.write import PROFILE_NOTES, duration, errors_range, errors_text, seed_range, write_report
from paper.runner.diagnoses import diagnosis_path, write_diagnosis

KMNIST = "KMNIST test split (10,000 images), not its training split"
RELIABILITY = {"confidence": [0.5, 1.0], "accuracy": [0.5, 0.9], "count": [1, 1], "edges": [0, 0.5, 1]}
ROC = {"in_domain": {"fpr": [0.0, 1.0], "tpr": [0.0, 1.0]}}


def write(folder, *results: Result) -> None:
    for result in results:
        order = Order(result.task, result.method, result.profile, result.seed, result.context)
        write_result(result_path(folder, order), result)


def several() -> list[Result]:
    fsvi = {"context": "kmnist", "notes": [KMNIST], "curves": {"reliability": RELIABILITY}}
    return [
        *(make_result("fsvi", seed=s, metrics={"accuracy": 0.93 + 0.01 * s}, **fsvi) for s in (0, 1)),
        make_result("map", settings={"fit": {"note": "<b>&"}}),
        make_result("map", profile="smoke"),
        make_result("fsvi", task="retina", profile="quick", metrics={"auroc": 0.9}, curves={"roc": ROC}),
        make_result("map", task="my-task", metrics={"score": 1.0}),
    ]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The page and the Markdown of several results, one file of which is truncated; and what was told."""
    folder, told = tmp_path_factory.mktemp("results"), []
    write(folder, *several())
    (folder / "fashion-mnist" / "half.json").write_text('{"task": "fash')
    page = write_report(folder, folder / "report", told.append)
    return page.read_text("utf-8"), page.with_suffix(".md").read_text("utf-8"), told


def test_the_page_is_well_formed_and_needs_nothing_else(report):
    page = Page(report[0])
    assert page.open == []
    assert page.fetched and all(source.startswith("data:image/") for source in page.fetched)
    assert len(page.ids) == len(set(page.ids))


@pytest.mark.parametrize(
    "shown", ["93.50", "± 0.50", "93.48", "+0.02", "not run", "Deep ensemble", "0, 1", "2 min", KMNIST, "Reliability"]
)
def test_numbers_notes_and_figures_are_shown(report, shown):
    assert shown in Page(report[0]).text


def test_settings_are_shown_escaped(report):
    assert "<b>&" not in report[0].partition("FashionMNIST")[2]
    assert '"note": "<b>&"' in Page(report[0]).text


def test_the_best_is_marked_once(report):
    best = [part for part in report[0].split("<td ") if part.startswith('class="best"')]
    assert len(best) == 1 and "93.50" in best[0]


def test_markdown_has_the_same_cells(report):
    lines = [line for line in report[1].splitlines() if line.startswith("| FSVI (KMNIST)")]
    assert lines[0].startswith("| FSVI (KMNIST) | **93.50 ± 0.50** / 93.48 ± 0.12 / +0.02 | – / 0.010 ± 0.001 / – |")
    assert "| DUQ | not run / 92.40 ± 0.20 / – | – / – / – |" in report[1]
    assert f"- FSVI (KMNIST): {KMNIST}" in report[1]


def test_markdown_tables_are_rectangular(report):
    widths: list[set[int]] = []
    for before, line in zip(["", *report[1].splitlines()], report[1].splitlines(), strict=False):
        if line.startswith("|"):
            if not before.startswith("|"):
                widths.append(set())
            widths[-1].add(line.count("|"))
    assert len(widths) == 5 and all(len(width) == 1 for width in widths)


def test_an_unreadable_file_is_listed_with_its_reason(report):
    html, markdown, told = report
    for text in (Page(html).text, markdown, "\n".join(told)):
        assert "half.json" in text
    assert "6 results" in told[-1] and "report.html" in told[-1]


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_has_a_report(tmp_path, profile):
    write(tmp_path, make_result("map", task="cifar10", profile=profile))
    page = write_report(tmp_path, tmp_path / "report", lambda _: None)
    assert PROFILE_NOTES[profile].partition(":")[0] in html.unescape(page.read_text("utf-8"))


def test_profiles_are_explained(report):
    assert "the numbers mean nothing" in Page(report[0]).text


def test_a_run_that_is_there_twice_counts_once(tmp_path):
    write(tmp_path / "a", make_result())
    write(tmp_path / "b", make_result(metrics={"accuracy": 0.1}))
    told = []
    page = write_report(tmp_path, tmp_path / "out", told.append)
    assert "same run" in told[0] and "1 results" in told[-1]
    assert "92.00" in page.read_text("utf-8") and "10.00" not in page.read_text("utf-8")


def test_an_empty_folder_is_one_sentence(tmp_path):
    with pytest.raises(InvalidInputError, match="no results"):
        write_report(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(InvalidInputError, match="folder"):
        write_report(tmp_path / "nowhere", tmp_path / "out")


def test_a_folder_of_which_nothing_can_be_read_says_so(tmp_path):
    (tmp_path / "a.json").write_text("[]")
    page = write_report(tmp_path, tmp_path / "out", lambda line: None)
    assert "None of the files" in Page(page.read_text("utf-8")).text


def test_times_and_seeds_are_easy_to_read():
    assert [duration(seconds) for seconds in (12.4, 600.0, 9000.0)] == ["12 s", "10 min", "2.5 h"]
    assert [seed_range(seeds) for seeds in ([0], [1, 0], [2, 0, 1], [0, 1, 3])] == ["0", "0, 1", "0–2", "0, 1, 3"]


# Diagnosis


FAULT = Finding("kl_balance", "no", "The KL term is 288.", "Lower kl_weight.")
WELL = Finding("learning", "ok", "It has learned <much>.")


@pytest.fixture
def diagnosed(tmp_path):
    """Two results with a diagnosis, the sound one first, and one without."""
    write(tmp_path, make_result("fsvi"), make_result("map"), make_result("mfvi"))
    for name, findings in (("fsvi", (WELL,)), ("map", (WELL, FAULT))):
        path = result_path(tmp_path, Order("fashion-mnist", name))
        write_diagnosis(diagnosis_path(path), Diagnosis(findings))
    return tmp_path


def test_diagnoses_are_a_section_the_worst_first(diagnosed):
    page = write_report(diagnosed, diagnosed / "out", lambda line: None)
    shown = Page(page.read_text("utf-8"))
    assert shown.open == [] and "diagnosis" in shown.ids
    section = shown.text[shown.text.index("Can the uncertainty be relied on?") :]
    order = ["MAP", "KL balance", "Lower kl_weight.", "It has learned <much>.", "FSVI"]
    assert [section.index(text) for text in order] == sorted(section.index(text) for text in order)
    assert "MFVI" not in section
    markdown = page.with_suffix(".md").read_text("utf-8")
    assert "    - no, kl balance: The KL term is 288. Lower kl_weight." in markdown


def test_without_diagnoses_there_is_no_such_section(report):
    assert "diagnosis" not in Page(report[0]).ids and "Diagnosis" not in report[1]


def test_a_diagnosis_that_cannot_be_read_is_listed(diagnosed):
    diagnosis_path(result_path(diagnosed, Order("fashion-mnist", "map"))).write_text("{")
    told = []
    page = write_report(diagnosed, diagnosed / "out", told.append)
    assert "map.paper.0.diagnosis.json" in told[0] and "3 results" in told[-1]
    assert "Lower kl_weight." not in Page(page.read_text("utf-8")).text


@pytest.mark.parametrize(
    "curves",
    [
        {"reliability": {"confidence": [0.5]}},
        {"reliability": {"confidence": [0.5], "accuracy": ["x"]}},
        {"reliability": {"confidence": [0.5], "accuracy": [0.5, 0.9]}},
        {"entropy": {"test": []}},
        {"roc": {}},
        {"picture": {"kind": "surface", "x": [[0, 0]], "y": [0], "axis": [0, 1], "mean": [[0, 1]], "variance": [[0]]}},
    ],
    ids=str,
)
def test_a_result_whose_curves_cannot_be_drawn_is_left_out(tmp_path, curves):
    write(tmp_path, make_result("fsvi"), make_result("map", curves=curves))
    told = []
    write_report(tmp_path, tmp_path / "out", told.append)
    assert f"{next(iter(curves))!r}" in told[0] and "1 results" in told[-1]


def test_numbers_of_standard_errors():
    assert [errors_text(each) for each in (2.04, -0.5, 0.0)] == ["+2.0", "−0.5", "0.0"]
    assert [errors_text(each) for each in (math.inf, -123.0)] == ["≥ +100", "≤ −100"]
    assert errors_range([1.0, -2.0, 3.0]) == "−2.0 to +3.0" and errors_range([1.0]) == "+1.0"
