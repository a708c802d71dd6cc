import re

import pytest

from fsvi.cli.table_report import write_report
from fsvi.estimators.assessment import Assessment, Check, Growth, ReferredRow
from fsvi.tables import NumberColumn, TableEncoder

FACTS = {
    "table": "t.csv",
    "target": "price",
    "task": "regression",
    "method": "fsvi",
    "rows": 100,
    "skipped": "Skipped 1 row.",
    "train": 80,
    "calibration": 0,
    "test": 20,
    "seed": 0,
}


def make(passed=(True, True)):
    return Assessment(
        task="regression",
        num_rows=20,
        metrics={
            "FSVI": {"rmse": 1.25, "nll": 0.5},
            "MAP": {"rmse": 1.5, "nll": 0.7},
            "guess": {"rmse": 3.0, "nll": 2.0},
        },
        checks=[Check("Useful?", passed[0], "So much."), Check("Honest?", passed[1], "So <much>.")],
        reliability={"FSVI": [(0.5, 0.5), (0.95, 0.9)], "MAP": [(0.5, 0.3), (0.95, 0.7)]},
        referral=[(share / 10, 1.0 - share / 20) for share in range(10)],
        referred=[ReferredRow(17, "3.2", "1 to 5", "9", True)],
        growth=[
            Growth("size", (-8.0, 0.0, 8.0), {"FSVI": [1.0, 0.2, 1.0], "MAP": [0.2, 0.2, 0.2]}, 5.0, True),
            Growth("color", (0.0, 1.0), {"FSVI": [0.2, 0.2], "MAP": [0.2, 0.2]}, 1.0, False),
        ],
        together={"FSVI": {"all up": 1.0}, "MAP": {"all up": 0.2}},
    )


def page(tmp_path, assessment):
    encoder = TableEncoder([NumberColumn("size", 0.0, -1.0, 1.0, True)], [("id", "text")])
    write_report(tmp_path / "r.html", assessment, encoder, FACTS, tmp_path / "m.fsvi")
    return (tmp_path / "r.html").read_text()


@pytest.mark.parametrize(
    ("passed", "verdict", "words"),
    [
        ((True, True), "trust", "You can trust"),
        ((True, False), "care", "with care: 1 of 2"),
        ((False, True), "no", "Do not trust"),
    ],
)
def test_the_verdict_is_on_top(tmp_path, passed, verdict, words):
    text = page(tmp_path, make(passed))
    assert words in text and f'class="verdict {verdict}"' in text
    assert text.index(words) < text.index("How good are the predictions")


def test_the_page_needs_nothing_else_and_says_everything(tmp_path):
    text = page(tmp_path, make())
    assert not re.search(r'(src|href)="(?!https://arxiv)', text) and "So &lt;much&gt;." in text
    for words in ["1.25", "17", "1 to 5", "some missing", "left out", "Skipped 1 row.", "fsvi predict m.fsvi"]:
        assert words in text


def test_columns_that_the_model_does_not_notice_come_first(tmp_path):
    text = page(tmp_path, make())
    leaving = text[text.index("What happens when a column") :]
    assert leaving.index("color <b>stays sure</b>") < leaving.index('aria-label="size"')
    assert text.count('<svg viewBox="0 0 240 150"') == 4
