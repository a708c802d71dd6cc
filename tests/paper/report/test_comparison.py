"""Cells hold the paper's value, ours and the difference, and nothing that is missing is left out."""

import pytest

from made_results import make_result
from paper.columns import MeanOverSeeds
from paper.report.comparison import Cell, Table, TableRow, build_tables


def only(tables: list[Table]) -> Table:
    (table,) = tables
    return table


def row(table: Table, label: str) -> TableRow:
    (found,) = [each for each in table.rows if each.label == label]
    return found


def cell(table: Table, label: str, name: str) -> Cell:
    (found,) = [each for each in row(table, label).cells if each.column.name == name]
    return found


def accuracies(**by_label: float) -> list:
    return [make_result(method, metrics={"accuracy": value}) for method, value in by_label.items()]


def test_ours_in_the_papers_units_with_the_difference():
    seeds = [make_result("fsvi", "kmnist", i, metrics={"accuracy": a}) for i, a in enumerate((0.92, 0.93, 0.94))]
    found = cell(only(build_tables(seeds)), "fsvi (kmnist)", "accuracy")
    assert found.paper == MeanOverSeeds(93.48, 0.12)
    assert (found.ours.mean, found.ours.error, found.ours.count) == pytest.approx((93.0, 1 / 3**0.5, 3))
    assert found.column.show(found.ours) == "93.00 ± 0.58"
    assert found.difference == -0.48 and found.difference_text == "−0.48" and found.verdict == "worse"


def test_every_row_of_the_paper_stands_there_and_so_do_ours():
    table = only(build_tables([make_result("map"), make_result("vogn"), make_result("ensemble:swag")]))
    labels = [each.label for each in table.rows]
    assert labels[0] == "map" and not row(table, "duq").results
    assert len(labels) == 13 + 2
    assert cell(table, "vogn", "accuracy").paper is None
    assert cell(table, "duq", "accuracy").ours is None and cell(table, "duq", "accuracy").paper.mean == 92.4
    assert cell(table, "map", "auroc_mnist").ours is None


def test_ensembles_come_last():
    labels = [each.label for each in only(build_tables([make_result("vogn"), make_result("ensemble:swag")])).rows]
    single = [not label.startswith("ensemble:") for label in labels]
    assert single == sorted(single, reverse=True)
    assert labels[single.count(True) - 1] == "vogn" and labels[-1] == "ensemble:swag"


def test_lower_is_better_for_ece():
    results = [make_result("map", metrics={"ece_15": 0.030}), make_result("mfvi", metrics={"ece_15": 0.040})]
    table = only(build_tables(results))
    assert cell(table, "map", "ece_15").best and not cell(table, "mfvi", "ece_15").best
    assert cell(table, "map", "ece_15").verdict == "better" and cell(table, "mfvi", "ece_15").verdict == "worse"


def test_all_that_look_best_are_marked_unless_that_is_all():
    table = only(build_tables(accuracies(map=0.930001, mfvi=0.930002, swag=0.92)))
    assert [cell(table, each, "accuracy").best for each in ("map", "mfvi", "swag")] == [True, True, False]
    table = only(build_tables(accuracies(map=0.93, mfvi=0.93)))
    assert not any(each.best for each in table.rows[0].cells)


def test_a_difference_of_nothing_has_no_sign():
    found = cell(only(build_tables(accuracies(map=0.91729))), "map", "accuracy")
    assert found.difference_text == "0.00" and found.verdict == ""


def test_profiles_have_tables_of_their_own():
    results = [make_result(profile=profile) for profile in ("smoke", "paper", "quick")]
    assert [table.profile for table in build_tables(results)] == ["paper", "quick", "smoke"]


def test_uci_sets_stand_side_by_side():
    metrics = {"rmse": 4.0, "log_likelihood": -2.9}
    results = [make_result("fsvi", task=f"uci-{name}", metrics=metrics) for name in ("concrete", "protein")]
    errors, likelihoods = build_tables(results)
    assert [column.metric.label for column in errors.columns][:2] == ["Boston", "Concrete"]
    assert errors.source == "Table 4 of the paper" and [each.label for each in errors.rows] == ["fbnn", "fsvi"]
    by_task = {each.column.task: each for each in row(errors, "fsvi").cells}
    assert by_task["uci-concrete"].difference_text == "−0.177"
    assert by_task["uci-boston"].ours is None and by_task["uci-boston"].paper.mean == 3.632
    assert row(likelihoods, "fsvi").cells[1].difference_text == "−0.045"


def test_the_retinas_two_tables():
    metrics = {"auroc": 0.9, "accuracy_referred_50_shifted": 0.8}
    inside, shifted = build_tables([make_result("fsvi", "monochrome", task="retina", metrics=metrics)])
    assert cell(inside, "fsvi (monochrome)", "auroc").difference_text == "+1.5"
    assert cell(shifted, "fsvi (monochrome)", "accuracy_referred_50_shifted").difference_text == "−10.7"
    assert "fsvi" not in [each.label for each in inside.rows]


def test_an_unknown_task_shows_all_its_metrics():
    table = only(build_tables([make_result(task="my-task", metrics={"score": 1.25, "other_score": -3.0})]))
    assert [column.metric.label for column in table.columns] == ["score", "other score"]
    assert table.source == "" and not table.detailed


def test_columns_that_nobody_has_are_left_out():
    table = only(build_tables([make_result(task="rotated-mnist", metrics={"accuracy": 0.9, "brier": 0.1})]))
    assert [column.name for column in table.columns] == ["accuracy", "brier"]


def test_seeds_time_and_notes_of_a_row():
    times = ({"train": 10.0, "evaluate": 2.0}, {"train": 20.0, "evaluate": 4.0})
    results = [make_result(seed=s, seconds=each, notes=["a", "b"]) for s, each in zip((3, 1), times, strict=True)]
    found = row(only(build_tables(results)), "map")
    assert found.seeds == [1, 3] and found.seconds == 18.0 and found.notes == ["a", "b"]


def test_a_row_says_where_settings_differ_between_seeds():
    changed = make_result("map", seed=1, settings={"fit": {"epochs": 20}})
    table = only(build_tables([make_result("map"), changed, make_result("mfvi"), make_result("mfvi", seed=1)]))
    assert row(table, "map").notes == ["settings differ between seeds"] == table.notes
    assert row(table, "mfvi").notes == []


def test_settings_that_an_earlier_version_did_not_name_make_no_difference():
    fewer, more = ({"method": {"members": [settings, settings]}} for settings in ({"a": 1}, {"a": 1, "b": 2}))
    table = only(build_tables([make_result("map", settings=fewer), make_result("map", seed=1, settings=more)]))
    assert table.notes == []


@pytest.mark.parametrize("other", [{"fit": {"epochs": 20, "lr": 1.0}}, {"fit": {"epochs": 20}, "ordered": {"fit": {}}}])
def test_training_that_was_ordered_otherwise_makes_a_difference(other):
    results = [make_result("map", settings={"fit": {"epochs": 20}}), make_result("map", seed=1, settings=other)]
    assert only(build_tables(results)).notes == ["settings differ between seeds"]


def test_a_note_of_some_tasks_of_a_row_names_them():
    notes = {"uci-concrete": ["a", "b"], "uci-yacht": ["a", "b"], "uci-protein": ["a"]}
    results = [make_result(task=task, metrics={"rmse": 4.0}, notes=each) for task, each in notes.items()]
    assert only(build_tables(results)).notes == ["a", "concrete, yacht: b"]


def test_a_row_of_ensembles_has_their_size():
    ensemble = make_result("ensemble:map", settings={"method": {"settings": {"members": [{}, {}, {}]}}})
    assert only(build_tables([ensemble])).notes == ["3 members"]


def test_tasks_side_by_side_may_have_settings_of_their_own():
    tasks = {"uci-concrete": 1, "uci-protein": 2}
    results = [make_result(task=task, metrics={"rmse": 4.0}, settings={"epochs": n}) for task, n in tasks.items()]
    assert only(build_tables(results)).notes == []


def test_duq_is_ranked_by_its_own_score_with_the_entropy_next_to_it():
    """Numbers of an earlier version's file, in which `auroc_mnist` is by entropy."""
    old = {"auroc_mnist": 0.6947, "auroc_entropy_mnist": 0.6947, "auroc_own_mnist": 0.9935}
    other = dict.fromkeys(old, 0.993)
    table = only(build_tables([make_result("duq", metrics=old), make_result("fsvi", "kmnist", metrics=other)]))
    duq, fsvi = (cell(table, label, "auroc_mnist") for label in ("duq", "fsvi (kmnist)"))
    assert (duq.ours.mean, duq.by_entropy.mean) == pytest.approx((99.35, 69.47))
    assert duq.best and not fsvi.best
    assert fsvi.by_entropy is None, "its own score is the entropy"
    assert duq.difference_text == "+3.85"


def test_remarks_concern_every_row():
    results = [make_result("fsvi", task="uci-yacht", metrics={"rmse": 1.0})]
    assert "context" in only(build_tables(results)).remarks[0].lower()


def test_a_table_without_published_measures_names_no_source():
    results = [make_result("map", task="split-mnist", metrics={"accuracy": 0.9, "forgetting": 0.1})]
    accuracy, forgetting = build_tables(results)
    assert "S-FSVI" in accuracy.source and forgetting.source == ""
