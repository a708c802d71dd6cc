"""A few kills and corruptions, by the program that makes many: `make reliability`."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import fsvi
from reliability import kills
from reliability.corruptions import Payload, judge

KILLS, CORRUPTIONS = 4, 20


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The program's report; a process of its own, since only one with a single thread may fork."""
    out = tmp_path_factory.mktemp("reliability")
    path = os.pathsep.join(
        map(str, [Path(__file__).parents[1], Path(__file__).parents[2], Path(fsvi.__file__).parents[1]])
    )
    command = [sys.executable, "-m", "reliability", "--kills", KILLS, "--corruptions", CORRUPTIONS]
    done = subprocess.run(
        [*map(str, command), "--out", str(out)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((out / "reliability.json").read_text())


def test_a_killed_training_ends_in_the_same_bits_and_leaves_nothing_behind(report):
    counts = report["kills"].values()
    assert sum(each["kills"] for each in counts) == KILLS
    for each in counts:
        assert each["bit-identical"] == each["trainings resumed to their end"] > 0
        assert each["left behind"] == []


@pytest.mark.parametrize("kind", ["model", "result"])
def test_a_spoiled_file_is_detected_or_harmless(report, kind):
    counts = report["corruptions"][kind]
    assert counts["detected"] + counts["harmless"] == counts["corruptions"] == CORRUPTIONS // 2
    assert counts["detected"] > 0 and counts["failures"] == []


def test_the_pickles_that_are_planted_would_leave_a_mark(tmp_path):
    pickle.loads(pickle.dumps(Payload(tmp_path / "mark")))
    assert (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        ("models/a.fsvi is odd.", "detected"),
        ("size=-1 is odd.", "unclear"),
        ("models/a.fsvi is odd", "unclear"),
        ("models/a.fsvi is\nodd.", "unclear"),
    ],
)
def test_only_a_sentence_that_names_the_file_counts_as_detected(said, outcome):
    def read(whole):
        raise fsvi.errors.FileFormatError(said)

    assert judge(read, None, Path("models/a.fsvi")) == (outcome, said)


class Writing(kills.Training):
    """A process that leaves as many half-written files as its name says, and sleeps."""

    def start(self, folder):
        names = " ".join(f"{folder}/.new.{number:016x}" for number in range(int(self.name)))
        command = f"{'touch ' + names + '; ' if names else ''}exec sleep 60"
        return os.posix_spawn("/bin/sh", ["sh", "-c", command], os.environ)


@pytest.mark.parametrize(("moment", "files", "counted"), [("start", 0, 0), ("write", 4, 1)])
def test_a_half_written_file_counts_for_the_kill_that_left_it(tmp_path, monkeypatch, moment, files, counted):
    monkeypatch.setattr(kills.Assassin, "_leave_alone", lambda assassin: setattr(assassin, "_first_file", 0.0))
    monkeypatch.setattr(kills, "MOMENTS", {moment: 1})
    (tmp_path / f".old.{'0' * 16}").touch()
    assassin = kills.Assassin(Writing(str(files), print, print), tmp_path, seed=0)
    assert assassin._kill_one(tmp_path)
    assert (assassin.tally.kills.total(), assassin.tally.in_a_write) == (1, counted)
