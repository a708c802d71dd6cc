"""Wins, ties and losses of FSVI, in standard errors."""

import math

import pytest

from made_results import make_result
from paper.records import Result
from paper.report.sections import build_sections
from paper.report.standing import Comparison, Standing, build_standings, count_verdicts, decisive_errors


def runs(method: str, values: list[float], name: str = "accuracy", first: int = 0, **changes) -> list[Result]:
    return [make_result(method, seed=first + i, metrics={name: v}, **changes) for i, v in enumerate(values)]


def standing(results: list[Result], label: str) -> Standing:
    (found,) = [each for each in build_standings(build_sections(results)) if each.label == label]
    return found


def only(results: list[Result], label: str = "map") -> Comparison:
    (found,) = standing(results, label).comparisons
    return found


def test_the_same_seeds_are_paired():
    # Differences .02, .01, .03: mean .02, standard error .01/√3. Unpaired, it would be more than four times as large.
    found = only(runs("fsvi", [0.92, 0.87, 0.97]) + runs("map", [0.90, 0.86, 0.94]))
    assert found.gain == pytest.approx(2.0) and found.error == pytest.approx(1 / math.sqrt(3))
    assert found.errors == pytest.approx(2 * math.sqrt(3)) and found.verdict == "tie"


def test_few_seeds_need_more_standard_errors():
    # A bit more than three standard errors: Student's t has 4.30 for three seeds and 2.57 for six.
    three, six = (1, 2, 3), (0, 1, 2, 3, 3.2, 1)  # differences in percentage points
    for differences, verdict in ((three, "tie"), (six, "win")):
        theirs = [0.8 + 0.01 * seed for seed in range(len(differences))]
        ours = [value + 0.01 * difference for value, difference in zip(theirs, differences, strict=True)]
        found = only(runs("fsvi", ours) + runs("map", theirs))
        assert found.errors is not None and 3 < found.errors < 4
        assert found.seeds == len(differences) and found.verdict == verdict
    assert [round(decisive_errors(seeds), 2) for seeds in (2, 3, 6, 10)] == [12.71, 4.30, 2.57, 2.26]
    # of two numbers of seeds, the smaller counts
    found = only(runs("fsvi", ours) + runs("map", theirs[:3], first=50))
    assert found.seeds == 3


def test_other_seeds_are_not_paired():
    # Standard errors √(s²/n): .01/√2 · √2 = .01 each for two seeds that differ by .02, so √2 · .01 together.
    found = only(runs("fsvi", [0.92, 0.94]) + runs("map", [0.90, 0.92], first=5))
    assert found.error == pytest.approx(math.sqrt(2)) and found.errors == pytest.approx(math.sqrt(2))
    assert found.verdict == "tie"


def test_lower_is_better_for_calibration_errors():
    found = only(runs("fsvi", [0.05, 0.06, 0.07], "ece_15") + runs("map", [0.01, 0.02, 0.031], "ece_15"))
    assert found.gain == pytest.approx(-0.04, abs=1e-3) and found.verdict == "loss"


def test_equal_differences_are_decided_without_spread():
    found = only(runs("fsvi", [0.25, 0.5]) + runs("map", [0.25, 0.5]))
    assert (found.errors, found.verdict) == (0.0, "tie")
    found = only(runs("fsvi", [0.25, 0.5]) + runs("map", [0.125, 0.375]))
    assert (found.errors, found.verdict) == (math.inf, "win")


@pytest.mark.parametrize(("ours", "verdict"), [(0.93, "ahead"), (0.91, "behind"), (0.92, "even")])
def test_one_seed_only_says_who_is_ahead(ours: float, verdict: str):
    found = only(runs("fsvi", [ours]) + runs("map", [0.92]))
    assert found.errors is None and found.verdict == verdict


def test_the_most_complete_profile_with_both_counts():
    results = runs("fsvi", [0.93]) + runs("map", [0.94], profile="quick") + runs("fsvi", [0.9], profile="quick")
    assert only(results).profile == "quick"
    assert only(results + runs("map", [0.92])).profile == "paper"
    smoke = [run for method in ("fsvi", "map") for run in runs(method, [0.9], profile="smoke")]
    assert not build_standings(build_sections(smoke))


def test_fsvi_stands_for_itself_with_its_default_context():
    results = runs("fsvi", [0.9], context="monochrome") + runs("fsvi", [0.91], context="kmnist")
    results += runs("ensemble:fsvi", [0.99], context="kmnist") + runs("map", [0.92])
    found = build_standings(build_sections(results))
    assert [each.label for each in found] == ["map"]
    assert found[0].comparisons[0].fsvi.label == "fsvi (kmnist)"


def test_fsvi_has_the_context_with_the_most_seeds():
    results = runs("fsvi", [0.9, 0.9], context="monochrome") + runs("fsvi", [0.95], context="kmnist")
    assert only(results + runs("map", [0.92, 0.92])).gain == pytest.approx(-2.0)


def test_measures_are_counted_by_section():
    metrics = {"accuracy": 0.93, "ece_15": 0.03}
    results = [make_result("fsvi", metrics=metrics), make_result("map")]
    results += [make_result(m, task="uci-yacht", metrics={"rmse": r}) for m, r in (("fsvi", 1.0), ("map", 2.0))]
    found = standing(results, "map")
    assert {title: len(group) for title, group in found.by_section.items()} == {"FashionMNIST": 2, "UCI regression": 1}
    assert count_verdicts(found.comparisons) == {"ahead": 2, "behind": 1}
