"""Sections hold the tables, figures and runs of their own tasks."""

from made_results import make_result
from paper.records import Result
from paper.report.sections import build_sections

KMNIST = "KMNIST test split (10,000 images), not its training split"
RELIABILITY = {"confidence": [0.5, 1.0], "accuracy": [0.5, 0.9], "count": [1, 1], "edges": [0, 0.5, 1]}
ROC = {"in_domain": {"fpr": [0.0, 1.0], "tpr": [0.0, 1.0]}}


def several() -> list[Result]:
    fsvi = {"context": "kmnist", "notes": [KMNIST], "curves": {"reliability": RELIABILITY}}
    return [
        *(make_result("fsvi", seed=s, metrics={"accuracy": 0.93 + 0.01 * s}, **fsvi) for s in (0, 1)),
        make_result("map", settings={"fit": {"note": "<b>&"}}),
        make_result("map", profile="smoke"),
        make_result("fsvi", task="retina", profile="quick", metrics={"auroc": 0.9}, curves={"roc": ROC}),
        make_result("map", task="my-task", metrics={"score": 1.0}),
    ]


def test_sections_hold_their_own_results():
    sections = {section.name: section for section in build_sections(several())}
    assert list(sections) == ["fashion-mnist", "retina", "my-task"]
    paper, smoke = sections["fashion-mnist"].parts
    assert (paper.profile, len(paper.results), len(smoke.results)) == ("paper", 3, 1)
    assert [figure.title for figure in paper.figures] == ["Reliability"]
    assert len(sections["retina"].parts[0].tables) == 1 and len(sections["retina"].parts[0].results) == 1


def test_seeds_with_other_settings_are_told_apart():
    same, other = {"fit": {"epochs": 30}}, {"fit": {"epochs": 31}}
    results = [make_result(seed=s, settings=each) for s, each in enumerate((same, same, other))]
    (section,) = build_sections(results)
    assert [[r.seed for r in run.results] for run in section.parts[0].runs] == [[0, 1], [2]]


def test_tasks_with_a_common_table_share_a_section():
    results = [make_result(task=f"uci-{name}", metrics={"rmse": 1.0}) for name in ("yacht", "wine")]
    (section,) = build_sections(results)
    assert section.name == "uci" and len(section.parts[0].results) == 2
