"""When a trial is given up."""

from datetime import datetime, timedelta

import pytest

from fsvi.errors import InvalidInputError
from paper.tuning import pruning
from paper.tuning.pruning import REPORTS, STARTUP, WARMUP, OutOfTimeError, Watch, parse_duration, time_limit

optuna = pytest.importorskip("optuna", reason="Optuna is an extra: pip install optuna")


@pytest.fixture
def study():
    """Five trials with the values 1 to 5 at every report."""
    study = optuna.create_study(direction="maximize", pruner=optuna.pruners.MedianPruner(STARTUP, WARMUP))
    for value in range(1, 6):
        trial = study.ask()
        watch = Watch(trial, None, None)
        watch.begin(lambda value=value: float(value))
        for epoch in range(1, 21):
            watch.report(epoch, 20)
        study.tell(trial, value)
    return study


def reported(study, score, **options):
    """The reports of another trial, and why it was pruned."""
    trial = study.ask()
    watch = Watch(trial, options.get("limit"), options.get("deadline"))
    watch.begin(score, options.get("earlier", ()))
    try:
        for epoch in range(1, 21):
            watch.report(epoch, 20)
    except optuna.TrialPruned as reason:
        return study.trials[trial.number].intermediate_values, str(reason)
    return study.trials[trial.number].intermediate_values, None


def test_a_trial_below_the_median_is_pruned_after_a_while(study):
    values, reason = reported(study, lambda: 2.9)
    assert values == {1: 2.9, 2: 2.9, 3: 2.9} and "30%" in reason
    values, reason = reported(study, lambda: 3.1)
    assert list(values) == list(range(1, REPORTS)) and reason is None, "the end of training is no report"


def test_of_several_splits_the_mean_is_reported(study):
    values, _ = reported(study, lambda: 2.0, earlier=[8.0, 5.0])
    assert values[2 * REPORTS + 1] == 5.0


def test_a_method_that_cannot_predict_yet_is_not_pruned(study):
    def refuse():
        raise InvalidInputError("not trained yet.")

    assert reported(study, refuse) == ({}, None)


def test_a_trial_may_take_some_times_the_median(study, monkeypatch):
    assert time_limit(study.trials[:4]) is None
    now = datetime(2026, 1, 1)
    trials = [optuna.trial.create_trial(value=0.0, state=optuna.trial.TrialState.COMPLETE) for _ in range(STARTUP)]
    for seconds, trial in zip([1, 2, 3, 50, 60], trials, strict=True):
        trial.datetime_start, trial.datetime_complete = now, now + timedelta(seconds=seconds)
    assert time_limit(trials) == 5 * 3, "five times the median, as the documentation says"
    pruned = optuna.trial.create_trial(state=optuna.trial.TrialState.PRUNED)
    pruned.datetime_start, pruned.datetime_complete = now, now + timedelta(seconds=0.1)
    assert time_limit([*trials, pruned, pruned]) == 15, "trials that were cut short do not count"
    clock = iter([0.0, 10.0, 16.0])
    monkeypatch.setattr(pruning.time, "monotonic", lambda: next(clock))
    watch = Watch(study.ask(), 15.0, None)
    watch.check_time()
    with pytest.raises(optuna.TrialPruned, match="15 s"):
        watch.check_time()


def test_time_is_up_at_the_deadline(study):
    with pytest.raises(OutOfTimeError):
        reported(study, lambda: 9.0, deadline=-1.0)


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("30m", 1800), ("1.5h", 5400), ("2d", 172800)])
def test_durations(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "30x", "-5", "0", "inf", "nan", "1 h 3"])
def test_bad_durations_are_refused(text):
    with pytest.raises(InvalidInputError, match="time_budget="):
        parse_duration(text)
