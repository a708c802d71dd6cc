"""A few kills and corruptions, by the program that makes many: `make reliability`."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import fsvi
from reliability.corruptions import Payload

KILLS, CORRUPTIONS = 4, 20


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The program's report; a process of its own, since only one with a single thread may fork."""
    out = tmp_path_factory.mktemp("reliability")
    path = os.pathsep.join([str(Path(__file__).parents[1]), str(Path(fsvi.__file__).parents[1])])
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
