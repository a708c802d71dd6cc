"""Several workers of one study."""

import pytest

from paper.tuning import sharing
from paper.tuning.sharing import AGAIN, SharedStudy
from paper.tuning.storage import Place

optuna = pytest.importorskip("optuna", reason="Optuna is an extra: pip install optuna")


@pytest.fixture(params=["journal", "sqlite"])
def place(request, tmp_path):
    return Place({"journal": str(tmp_path / "a.log"), "sqlite": f"sqlite:///{tmp_path}/a.db"}[request.param], tmp_path)


def join(place):
    """Another worker of the study."""
    study = optuna.create_study(storage=place.open(), study_name="a", load_if_exists=True)
    return SharedStudy(study, place, dict)


def test_workers_make_as_many_trials_as_were_asked_for_together(place):
    first, second = join(place), join(place)
    with first.at_work(), second.at_work():
        one, two = first.next_trial(2), second.next_trial(2)
        assert {one.number, two.number} == {0, 1}
        assert first.next_trial(3) is not None, "its own trial of before was interrupted"
        assert second.study.trials[0].state.name == "FAIL"
        second.study.tell(two, 1.0)
        assert second.next_trial(2) is None, "the other worker lives, and makes the last one"
        assert len(first.ended()) == 1


def test_the_trial_of_a_dead_worker_is_repeated_once(place):
    dead, living = join(place), join(place)
    with living.at_work():
        for again in (False, True):
            with pytest.raises(KeyboardInterrupt), dead.at_work():
                trial = dead.next_trial(1)
                trial.suggest_float("x", 0, 1)
                assert (AGAIN in trial.user_attrs) == again
                assert living.next_trial(1) is None
                raise KeyboardInterrupt
            living.repeat_interrupted()
        waiting = [each for each in living.study.trials if each.state.name == "WAITING"]
        failed = [each for each in living.study.trials if each.state.name == "FAIL"]
        assert len(failed) == 2 and not waiting
        assert failed[1].system_attrs["fixed_params"] == failed[0].params == failed[1].params
        assert living.next_trial(1).number == 2


def test_a_trial_that_ran_out_of_time_keeps_its_settings(place):
    worker = join(place)
    with worker.at_work():
        trial = worker.next_trial(1)
        value = trial.suggest_float("x", 0, 1)
        worker.give_back(trial)
        again = worker.next_trial(1)
        assert again.suggest_float("x", 0, 1) == value and AGAIN not in again.user_attrs


def test_without_a_common_folder_signs_of_life_decide(tmp_path, monkeypatch):
    """As if the database were on another machine."""
    clock = [0.0]
    monkeypatch.setattr(sharing.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(Place, "file", None)
    url = f"sqlite:///{tmp_path}/a.db"
    here, there = (join(Place(url, tmp_path / name)) for name in ("here", "there"))
    with there.at_work(), here.at_work():
        trial = there.next_trial(1)
        for now, sign in [(0.0, None), (80.0, 1), (160.0, 1)]:
            clock[0] = now
            if sign is not None:
                trial.set_user_attr(sharing.PULSE, sign)
            assert here.next_trial(1) is None
        clock[0] = 171.0
        assert here.next_trial(1).user_attrs[AGAIN] == 0


def test_the_later_of_two_that_asked_at_the_same_time_steps_back(place, monkeypatch):
    first, second = join(place), join(place)
    with first.at_work(), second.at_work():
        first.next_trial(1)
        with monkeypatch.context() as patch:
            patch.setattr(SharedStudy, "_running", lambda self: [])  # as seen just before the first one asked
            patch.setattr(SharedStudy, "_is_surplus", lambda self, trial, trials: trial.number >= trials)
            assert second.next_trial(1) is None
        assert [trial.state.name for trial in second.study.trials] == ["RUNNING", "FAIL"]


def test_signs_of_life_are_shown_while_a_trial_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(sharing, "_PULSE_INTERVAL", 0.01)
    monkeypatch.setattr(Place, "file", None)
    worker = join(Place(f"sqlite:///{tmp_path}/a.db", tmp_path))
    with worker.at_work():
        trial = worker.next_trial(1)
        with worker.pulse(trial):
            for _ in range(500):
                if worker.study.trials[0].user_attrs.get(sharing.PULSE, 0) > 1:
                    return
                sharing.time.sleep(0.01)
    pytest.fail("there was no sign")
