"""The verdict on models of tables, tried with cheap models; and new rows next to training rows."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.base import BaseEstimator
from sklearn.linear_model import BayesianRidge, LogisticRegression

import fsvi
from fsvi.diagnosis import Diagnosis, Finding, diagnose, write_report
from fsvi.diagnosis.drift import Seen, Sketch, _compare
from fsvi.diagnosis.statistics import (
    HeldOut,
    Paired,
    Promise,
    Relation,
    check_calibration,
    check_order,
    check_useful,
    strongest_relation,
)
from fsvi.likelihoods import GaussianPredictive
from fsvi.scoring.files import predict_file
from fsvi.scoring.scorers import ModelFile
from fsvi.tables import TableEncoder

FAST = {"epochs": 30, "num_samples": 20, "random_state": 2}


class Cheap(BaseEstimator):
    """A linear model with the interface of the estimators; `honesty` multiplies its standard deviations."""

    def __init__(self, honesty=1.0, columns=None):
        self.honesty, self.columns = honesty, columns

    def _learn(self, table):
        self.encoder_ = TableEncoder.learn(table, self.columns)
        return self._inputs(table)

    def _inputs(self, table):
        return np.tanh(self.encoder_.transform(table) / 3)


class CheapClassifier(Cheap):
    def fit(self, table, y, weights=None):
        self.model = LogisticRegression(C=100.0).fit(self._learn(table), y)
        self.classes_ = self.model.classes_
        return self

    def predict_proba(self, table):
        return self.model.predict_proba(self._inputs(table))


class CheapRegressor(Cheap):
    def fit(self, table, y, weights=None):
        x = self._learn(table)
        self.model = BayesianRidge().fit(x, y)
        self.std = self.honesty * float(np.std(y - self.model.predict(x)))
        return self

    def predict(self, table, return_std=False):
        mean = self.model.predict(self._inputs(table))
        return (mean, np.full(len(mean), self.std)) if return_std else mean

    def predictive(self, table):
        return GaussianPredictive(torch.as_tensor(self.predict(table))[None, :, None], torch.tensor([self.std**2]))

    def predict_interval(self, table, alpha):
        mean, reach = self.predict(table), stats.norm.isf(alpha / 2) * self.std
        return mean - reach, mean + reach


def make(num=300, seed=0, effect=1.0, **extra):
    """Two numbers and a color; the target depends on the first number and the color."""
    generator = np.random.default_rng(seed)
    color = generator.choice(["red", "blue"], num).astype(object)
    columns = {"size": generator.normal(size=num), "weight": generator.normal(size=num), "color": color, **extra}
    y = effect * (columns["size"] + (color == "red")) + 0.5 * generator.normal(size=num)
    return fsvi.tables.Table(columns, np.arange(2, num + 2)), y


def labels(y):
    return np.where(y > np.median(y), "high", "low")


def held_out(gain=0.0, loss_gain=None, num=200, **fields):
    """Held-out predictions with a mean gain over guessing, in standard deviations of one row."""
    generator = np.random.default_rng(0)
    log_prob, zeros = generator.normal(size=num), np.zeros(num)
    log_prob += gain - log_prob.mean()
    loss = 0.1 * generator.normal(size=num)
    loss -= loss.mean() + (gain if loss_gain is None else loss_gain)
    made = HeldOut(log_prob, zeros, zeros, loss, zeros, generator.normal(size=(num, 1)), loss[:, None], loss[:, None])
    return replace(made, **fields)


# Statistics -----------------------------------------------------------------------------------------------------------


def test_the_paired_test_is_scipys():
    gains = np.random.default_rng(0).normal(0.1, 1, 80)
    found, expected = Paired.test(gains), stats.ttest_1samp(gains, 0, alternative="greater")
    interval = stats.ttest_1samp(gains, 0).confidence_interval(0.95)
    assert (found.low, found.high, found.p) == pytest.approx((interval.low, interval.high, expected.pvalue))


def test_an_interval_of_a_share_is_scipys():
    low, high = Promise("sets", 0.9, 40, 50).interval(0.01)
    expected = stats.binomtest(40, 50).proportion_ci(0.99, "exact")
    assert (low, high) == pytest.approx((expected.low, expected.high))


def test_guesses_know_the_training_rows_and_swapped_predictions_those_of_other_rows():
    generator = np.random.default_rng(0)
    p, y, known = generator.dirichlet([1, 1, 1], 8), np.arange(8) % 3, np.array([0, 0, 0, 1, 2, 2])
    seen = HeldOut.of_classes(p, y, known)
    others = [np.log(np.delete(p, row, 0)[:, y[row]].mean()) for row in range(8)]
    assert seen.swapped == pytest.approx(others) and seen.log_prob == pytest.approx(np.log(p[np.arange(8), y]))
    assert seen.guess == pytest.approx(np.log(np.array([4, 2, 3]) / 9)[y])
    assert seen.metrics["accuracy"] == (p.argmax(1) == y).mean() and seen.metrics["guess_accuracy"] == (y == 0).mean()
    mean, std, y = (generator.normal(size=(21, 2)) for _ in range(3))
    p = GaussianPredictive(torch.as_tensor(mean)[None], torch.as_tensor(np.exp(2 * std))[None])
    seen = HeldOut.of_numbers(p, y, 2 * y, [p.interval(0.5), p.interval(0.95)])
    densities = np.array([[stats.norm.pdf(y[a], mean[b], np.exp(std[b])).prod() for b in range(21)] for a in range(21)])
    assert seen.log_prob == pytest.approx(np.log(densities.diagonal()))
    assert seen.swapped == pytest.approx(np.log((densities.sum(1) - densities.diagonal()) / 20))
    assert seen.guess == pytest.approx(stats.norm.logpdf(y, 2 * y.mean(0), 2 * y.std(0)).sum(1))
    assert seen.kept[:, 1] == pytest.approx((abs(y - mean) < stats.norm.isf(0.025) * np.exp(std)).mean(1))
    assert seen.metrics["rmse"] == pytest.approx(np.sqrt(((y - mean) ** 2).mean()))


EFFECTS = {
    "Column 'a'": lambda x: x[:, 0],
    "The square of 'a'": lambda x: (x[:, 0] - x[:, 0].mean()) ** 2,
    "Whether 'a' is above": lambda x: x[:, 0] > np.quantile(x[:, 0], 0.85),
    "The product of 'a' and 'b'": lambda x: x[:, 0] * x[:, 1],
}


def weak(effect, seed, num=300, t=4.5):
    """Six columns, and a target that depends on them with a t value of about `t`."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(num, 6))
    f = np.asarray(effect(x), dtype=float)
    f, noise = (f - f.mean()) / f.std(), generator.normal(size=num)
    noise -= noise.mean() + f * (noise * f).mean()
    return x, t / np.sqrt(num) * f + noise / noise.std()


@pytest.mark.parametrize("words", EFFECTS)
def test_weak_relations_are_found_and_named(words):
    tables = [weak(EFFECTS[words], seed) for seed in range(5)]
    found = [strongest_relation(x, y[:, None], list("abcdef")) for x, y in tables]
    assert all(each.p <= 0.05 and each.t == pytest.approx(4.5, abs=1) and "'a'" in each.words for each in found)
    assert any(each.words.startswith(words) for each in found)


def test_a_relation_of_one_column_has_the_t_value_of_a_linear_regression():
    x, y = weak(EFFECTS["Column 'a'"], 1)
    alone = stats.linregress(x[:, 0], y)
    assert strongest_relation(x[:, :1], y[:, None], ["a"]).t == pytest.approx(alone.slope / alone.stderr, rel=1e-4)


def test_the_p_value_of_a_relation_holds_also_with_heavy_tails():
    generator = np.random.default_rng(0)
    alarms = 0
    for _ in range(60):
        x, y = np.exp(generator.normal(size=(60, 4))), generator.standard_t(2, size=(60, 1))
        alarms += strongest_relation(x, y, list("abcd")).p <= 0.05
    assert alarms <= 8  # 3 expected


@pytest.mark.parametrize(
    ("gain", "loss_gain", "p", "level", "words"),
    [
        (0.5, 0.5, 1.0, "ok", "It predicts better than guessing"),
        (0.5, -0.5, 1.0, "care", "but its point predictions are not"),
        (0.5, -0.003, 1.0, "care", "but its point predictions are not"),
        (-0.5, 0.5, 1.0, "care", "Its point predictions are better"),
        (0.0, 0.0, 1e-5, "care", "Column 'a' may say something"),
        (0.0, 0.0, 0.5, "no", "no sign that it predicts better than guessing"),
    ],
)
def test_useful_says_what_its_numbers_say(gain, loss_gain, p, level, words):
    finding = check_useful(held_out(gain, loss_gain), Relation("Column 'a'", 4.4, p))
    assert (finding.level, words in finding.sentence, "It is right for" in finding.sentence) == (level, True, True)


@pytest.mark.parametrize(
    ("kept", "level", "words"),
    [
        ((0.5, 0.95), "ok", "Promises are kept"),
        ((0.83, 0.97), "care", "50% intervals promise 50.0% and hold for 83.0%"),
        ((0.5, 0.85), "care", "too sure"),
        ((0.2, 0.6), "no", "too sure"),
    ],
)
def test_coverage_is_tested_in_both_directions(kept, level, words):
    held = np.arange(400)[:, None] < 400 * np.array(kept)
    finding = check_calibration(held_out(num=400, promised=np.tile([0.5, 0.95], (400, 1)), kept=held.astype(float)))
    assert finding.level == level and words in finding.sentence


def test_calibration_has_one_false_alarm_in_a_hundred():
    generator = np.random.default_rng(0)
    alarms = 0
    for _ in range(300):
        confidence = generator.uniform(0.5, 1, (300, 1))
        seen = held_out(num=300, promised=confidence, kept=(generator.random((300, 1)) < confidence).astype(float))
        alarms += check_calibration(seen).level != "ok"
    assert alarms <= 3


def test_errors_of_neighbors_give_the_order_away():
    seen = held_out(0.5, num=300)
    y = np.random.default_rng(1).normal(size=300)
    assert check_order(seen, np.arange(300), y).level == "ok"
    slow = np.convolve(np.random.default_rng(2).normal(size=310), np.ones(11), "valid")[:, None]
    finding = check_order(replace(seen, residuals=slow), np.arange(300), y)
    assert finding.level == "care" and "time" in finding.sentence
    assert check_order(seen, np.arange(300), np.sort(y)) is None  # sorted by the target


# Tables ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [CheapClassifier, CheapRegressor])
def test_a_linear_model_is_useful_and_calibrated_but_stays_sure_far_away(kind):
    table, y = make()
    found = diagnose(kind(), (table, labels(y) if kind is CheapClassifier else y))
    assert found["useful"].level == found["calibration"].level == "ok"
    assert found["far"].level == "care" and found.verdict == "care"
    assert found.metrics["rows"] == 300 and found.metrics["nll"] < found.metrics["guess_nll"]


def test_rows_are_measured_by_models_that_have_not_seen_them():
    table, y = make(100)
    found = diagnose(CheapRegressor(), (table, y))
    errors = []
    for held in range(100):
        kept = np.arange(100) != held
        errors.append(float(CheapRegressor().fit(table.take(kept), y[kept]).predict(table.take(~kept))[0] - y[held]))
    assert found.metrics["rmse"] == pytest.approx(np.sqrt(np.mean(np.square(errors))), rel=0.05)


@pytest.mark.parametrize(("is_classes", "copies"), [(True, 5), (False, 5), (False, 1)])
def test_noise_is_not_trusted_not_even_repeated(is_classes, copies):
    for seed in range(3):
        table, y = make(40 * 6 // copies, seed, effect=0.0)
        rows = np.tile(np.arange(len(y)), copies)
        model, target = (CheapClassifier(), labels(y)) if is_classes else (CheapRegressor(), y)
        found = diagnose(model, (table.take(rows), target[rows]))
        assert found["useful"].level != "ok" and found.verdict != "trust"
        assert found["duplicates"].numbers["share"] == pytest.approx(1 - 1 / copies)
        assert found["leak"].level == "ok"


@pytest.mark.parametrize("words", EFFECTS)
def test_a_weak_effect_is_never_called_guessing(words):
    x, y = weak(EFFECTS[words], 0)
    assert diagnose(CheapRegressor(), (x, y))["useful"].level != "no"
    x, y = weak(EFFECTS[words], 0, t=6)  # two classes keep a part of it
    assert diagnose(CheapClassifier(), (x, labels(y)))["useful"].level != "no"


@pytest.mark.parametrize(
    ("is_classes", "result"),
    [
        (False, lambda y: y),
        (False, lambda y: np.exp(-3 * y)),
        (True, lambda y: 2 * y + 1),
        (True, lambda y: np.where(labels(y) == "high", 3.0, 7.0)),
        (True, lambda y: np.where(labels(y) == "high", "K", "A").astype(object)),
    ],
)
def test_a_column_that_gives_the_target_away_is_named(is_classes, result):
    table, y = make()
    leaking = fsvi.tables.Table({**table.columns, "result": result(y)}, table.lines)
    model, target = (CheapClassifier(), labels(y)) if is_classes else (CheapRegressor(), y)
    finding = diagnose(model, (leaking, target))["leak"]
    assert finding.level == "care" and "'result'" in finding.sentence
    assert diagnose(model, (table, target))["leak"].level == "ok"


def test_a_rare_class_can_be_given_away_too():
    table, y = make()
    target = np.where(y > np.sort(y)[-6], "sick", "well")
    leaking = fsvi.tables.Table({**table.columns, "code": (target == "sick") + 4.0}, table.lines)
    assert diagnose(CheapClassifier(), (leaking, target))["leak"].level == "care"


def test_tables_of_ids_missing_dates_and_empty_columns_are_diagnosed():
    generator = np.random.default_rng(0)
    ids, y = generator.permutation(9000)[:60].astype(float), generator.normal(size=60)
    assert (
        diagnose(CheapRegressor(), (fsvi.tables.Table({"id": ids}, np.arange(60)), y))["idle columns"].level == "care"
    )
    days = np.datetime64("2024-01-01") + np.arange(60).astype("timedelta64[D]")
    days[::7] = np.datetime64("NaT")
    table, y = make(60, day=days, gap=np.full(60, np.nan))
    assert "'day'" in diagnose(CheapRegressor(), (table, y))["time"].sentence


@pytest.mark.parametrize("name", ["customer_id", "CustomerID", "passengerId", "Row.No", "UUID"])
def test_columns_that_teach_nothing_are_named(name):
    numbers = np.random.default_rng(0).permutation(90_000)[:300].astype(float)
    table, y = make(**{name: numbers, "valid": numbers, "unit": np.ones(300), "nr": np.arange(300.0)})
    finding = diagnose(CheapRegressor(columns={"nr": "ignore"}), (table, y))["idle columns"]
    assert finding.level == "care" and finding.sentence == f"Only identifying rows: 1 column ('{name}')."


def test_dates_split_by_time_and_drift_is_then_seen():
    """The effect vanishes half way: random rows would hide it."""
    table, _ = make(300, day=np.datetime64("2024-01-01") + np.arange(300).astype("timedelta64[D]"))
    generator = np.random.default_rng(0)
    later = np.where(np.arange(300) < 150, 1.0, -1.0)
    y = later * table.columns["size"] + 0.3 * generator.normal(size=300)
    model = CheapRegressor(columns={"day": "date"})
    found = diagnose(model, (table, y))
    assert "earlier rows (in order of time, by 'day'" in found["time"].sentence and found["useful"].level != "ok"
    assert "earlier" not in diagnose(model, (table, y), time=False)["scope"].sentence
    assert diagnose(model, (table, y), time="rows").metrics["rows"] == 150
    assert diagnose(model, (table, y), time="size").metrics["rows"] == 150


@pytest.mark.parametrize("kind", [fsvi.FSVIRegressor, fsvi.FSVIClassifier])
def test_the_estimators_are_trusted_where_they_should_be(kind):
    table, y = make(200)
    found = diagnose(kind(**FAST), (table, labels(y) if kind is fsvi.FSVIClassifier else y))
    assert found["useful"].level == found["far"].level == "ok", str(found)


# New rows -------------------------------------------------------------------------------------------------------------


def seen(old, new):
    encoder = TableEncoder.learn(old)
    found = Seen(Sketch.learn(encoder, old), encoder)
    for part in np.array_split(np.arange(len(new)), 3):
        found.add(new.take(part))
    return found.diagnosis()


def test_new_rows_like_the_old_ones_raise_no_alarm():
    alarms = [seen(make(400, seed)[0], make(200, 1000 + seed)[0]).verdict != "trust" for seed in range(50)]
    assert sum(alarms) <= 2


def test_a_column_that_shifted_is_named_with_its_size():
    old, new = make(1000)[0], make(500, 1)[0]
    shifted = fsvi.tables.Table({**new.columns, "weight": new.columns["weight"] + 1.0}, new.lines)
    found = seen(old, shifted)
    assert found["drift"].level == "care" and "'weight'" in found["drift"].sentence
    assert "'size'" not in found["drift"].sentence
    assert found["drift"].numbers["shift"] == pytest.approx(2 * stats.norm.cdf(0.5) - 1, abs=0.06)
    assert found["outside"].level == "care"


def test_small_shifts_of_the_mean_are_seen():
    found = 0
    for seed in range(10):
        old, new = make(4000, seed)[0], make(500, 100 + seed)[0]
        shifted = fsvi.tables.Table({**new.columns, "weight": new.columns["weight"] + 0.2}, new.lines)
        found += "'weight'" in seen(old, shifted)["drift"].sentence
    assert found >= 6


def test_mean_ranks_are_compared_as_mann_and_whitney_did():
    generator = np.random.default_rng(0)
    tilted = np.linspace(0.8, 1.2, 9) / 9
    old, new = generator.integers(0, 9, 900), generator.choice(9, 400, p=tilted)
    counts = [np.bincount(values, minlength=9).astype(float) for values in (old, new)]
    expected = stats.mannwhitneyu(old, new, method="asymptotic", use_continuity=False)
    p, shift = _compare(*counts)
    assert p == pytest.approx(2 * expected.pvalue, rel=0.02)
    assert shift == pytest.approx(0.5 * np.abs(counts[0] / 900 - counts[1] / 400).sum())


def test_unknown_categories_and_missing_values_are_drift():
    old, new = make(1000)[0], make(200, 1)[0]
    green = fsvi.tables.Table({**new.columns, "color": np.full(200, "green", dtype=object)}, new.lines)
    found = seen(old, green)
    assert found["outside"].level == "no" and found["outside"].numbers["share"] == 1
    gaps = np.where(np.arange(200) < 40, np.nan, new.columns["size"])
    assert "'size'" in seen(old, fsvi.tables.Table({**new.columns, "size": gaps}, new.lines))["drift"].sentence


def test_an_estimator_checks_new_rows_also_after_it_was_saved(tmp_path):
    table, y = make(200)
    model = fsvi.FSVIRegressor(**{**FAST, "epochs": 2}).fit(table, y)
    model.save(tmp_path / "m.fsvi")
    loaded = fsvi.FSVIRegressor.load(tmp_path / "m.fsvi")
    moved = fsvi.tables.Table({**table.columns, "size": table.columns["size"] + 9.0}, table.lines)
    for each in (model, loaded):
        assert each.check(table).verdict == "trust" and each.check(moved).verdict == "no"
    assert len(str(model.sketch_.config())) < 3000
    lines = [f"{a},{b},{c}" for a, b, c in zip(*moved.columns.values(), strict=True)]
    (tmp_path / "new.csv").write_text("\n".join([",".join(moved.names), *lines]))
    told = []
    predict_file(ModelFile(tmp_path / "m.fsvi").load(), tmp_path / "new.csv", tmp_path / "p.csv", [], told.append)
    assert any("have shifted since training: 'size'" in sentence for sentence in told)
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 201


def test_the_report_says_everything_and_hides_nothing(tmp_path):
    findings = (Finding("useful", "ok", "Good."), Finding("leak", "care", "Column '<b>' & more.", "Look."))
    facts = {"table": "<script>", "left out": ""}
    write_report(tmp_path / "r.html", Diagnosis(findings, {"rmse": 1.234}), "price", facts)
    page = (tmp_path / "r.html").read_text()
    assert 'class="care"' in page and "<script>" not in page and "'&lt;b&gt;'" not in page and "left out" not in page
    assert page.index("Leak") < page.index("Useful") < page.index("1.234") < page.index("&lt;script&gt;")
    assert "src=" not in page and "href=" not in page


@pytest.mark.parametrize("counts", [[1, 2], [1, None, 2, 3], 5, [1, -1, 2, 3]])
def test_forged_counts_are_refused_when_they_are_read(counts):
    good = {"name": "a", "edges": [0.0, 1.0], "counts": [1, 2, 3, 4]}
    Sketch([good], 10)
    with pytest.raises(fsvi.errors.InvalidInputError, match="counts of column 'a'"):
        Sketch([{**good, "counts": counts}], 10)
