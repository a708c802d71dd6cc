"""Jobs in other processes."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from fsvi import parallel
from fsvi.errors import FSVIError, InvalidInputError
from fsvi.parallel import BACKENDS, Workers


def job(what):
    if what == "print":
        print("between the replies")
    if what == "refuse":
        raise FSVIError("there is no data.")
    if what == "fail":
        raise ZeroDivisionError("by zero")
    if what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    return what, torch.get_num_threads(), os.getpid()


def test_every_job_has_its_result_or_its_error():
    """One worker does them one after the other. Only the killed job is lost; after it, there is another process."""
    jobs = ["first", "print", "refuse", "fail", "second", "killed", "third"]
    found = dict(Workers(jobs=1, threads=1).each_finished(job, jobs))
    assert set(found) == set(jobs)
    assert str(found["refuse"]) == "there is no data." and str(found["fail"]) == "ZeroDivisionError: by zero"
    assert isinstance(found["killed"], FSVIError) and "was killed" in str(found["killed"])
    done = [found[what] for what in ("first", "print", "second", "third")]
    assert [(what, threads) for what, threads, _ in done] == [
        (what, 1) for what in ("first", "print", "second", "third")
    ]
    first, printed, second, third = (pid for *_, pid in done)
    assert first == printed == second != third and os.getpid() not in (first, third)


def lose_worker_once(folder):
    """The first time, kill the worker of the backend; the process that does the job ends with it."""
    mark = folder / "killed"
    if not mark.exists():
        mark.write_text(str(os.getpid()))
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    return os.getpid()


def test_jobs_of_a_lost_worker_are_done_again(tmp_path):
    (_, pid), _ = Workers(2).each_finished(lose_worker_once, [tmp_path, tmp_path])
    first = int((tmp_path / "killed").read_text())
    assert pid != first
    wait_for(lambda: not is_alive(first), "the process of a lost worker ends")


def wait_for(condition, what):
    for _ in range(1_200):
        if condition():
            return
        time.sleep(0.1)
    pytest.fail(f"not within two minutes: {what}")


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with suppress(OSError):  # where nobody waits for orphans, as in some containers, an ended one keeps its number
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return True


def note_processes(folder):
    """Write down the process that does the job and its worker, and go on for long."""
    (folder / f"{os.getpid()}.tmp").write_text(f"{os.getpid()} {os.getppid()}")
    (folder / f"{os.getpid()}.tmp").rename(folder / f"{os.getpid()}.job")
    time.sleep(600)


def test_workers_end_with_a_killed_main_process(tmp_path):
    """Also in the middle of a job: otherwise they would go on, and the next command would find their files locked."""
    script = "from test_parallel import *; from pathlib import Path; import sys; folder = Path(sys.argv[1]); "
    script += "list(Workers(2).each_finished(note_processes, [folder, folder]))"
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(parallel.__file__).parents[1])])
    command = [sys.executable, "-c", script, str(tmp_path)]
    main = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths})
    try:
        wait_for(lambda: len(list(tmp_path.glob("*.job"))) == 2, "both jobs have begun")
        pids = [int(pid) for path in tmp_path.glob("*.job") for pid in path.read_text().split()]
        assert len(set(pids)) == 4 and all(map(is_alive, pids))
    finally:
        main.kill()
        main.wait()
    wait_for(lambda: not any(map(is_alive, pids)), "workers and the processes of their jobs end")


def test_a_backend_that_always_breaks_down_is_one_sentence(monkeypatch):
    def broken(*_):
        raise OSError("no more processes")

    monkeypatch.setattr(Workers, "_each_of", broken)
    with pytest.raises(FSVIError, match=r"loky broke down 3 times .*no more processes"):
        list(Workers().each_finished(job, ["first"]))


@pytest.mark.parametrize("backend", ["ray", "dask"])
def test_other_backends_find_the_same(backend):
    if find_spec({"ray": "ray", "dask": "distributed"}[backend]) is None:
        pytest.skip(f"{backend} is an extra")
    found = dict(Workers(2, backend).each_finished(job, ["first", "killed", "second"]))
    assert found["first"][:2] == ("first", 1) and found["second"][:2] == ("second", 1)
    assert "was killed" in str(found["killed"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"jobs": 0}, "jobs=0"),
        ({"jobs": 1.5}, "jobs=1.5"),
        ({"threads": -1}, "threads=-1"),
        ({"backend": "lokky"}, "did you mean 'loky'"),
    ],
)
def test_bad_settings_are_refused(given, said):
    with pytest.raises(InvalidInputError, match=said):
        Workers(**given)


@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_a_backend_that_is_not_installed_says_how_to_get_it(monkeypatch, backend):
    monkeypatch.setattr(parallel, "find_spec", lambda name: None)
    with pytest.raises(FSVIError, match=rf"pip install 'fsvi\[{backend}\]'"):
        Workers(2, backend)


@pytest.fixture
def small_machine(monkeypatch):
    monkeypatch.setattr(parallel, "num_cores", lambda: 4)
    monkeypatch.setattr(parallel, "free_memory", lambda: 3_500)


@pytest.mark.parametrize(
    ("workers", "memory", "jobs", "said"),
    [
        (Workers(4), 0, 4, []),
        (Workers(9), 0, 4, ["4 instead of 9 jobs at the same time: there are 4 cores."]),
        (Workers(4, threads=2), 0, 2, ["2 instead of 4 jobs at the same time: there are 4 cores."]),
        (Workers(4, threads=8), 0, 1, ["1 instead of 4 jobs at the same time: there are 4 cores."]),
        (Workers(1, threads=8), 9_000, 1, []),
        (
            Workers(4),
            1_000,
            3,
            ["3 instead of 4 jobs at the same time: one needs about 1 kB of memory and 3.5 kB are free."],
        ),
        (
            Workers(2),
            9_000,
            1,
            ["1 instead of 2 jobs at the same time: one needs about 9 kB of memory and 3.5 kB are free."],
        ),
    ],
)
def test_the_machine_limits_the_number_of_jobs(small_machine, workers, memory, jobs, said):
    told = []
    assert workers.within_machine(memory, told.append).jobs == jobs
    assert told == said


def test_a_cluster_has_limits_of_its_own(small_machine, monkeypatch):
    monkeypatch.setattr(parallel, "find_spec", lambda name: True)
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert Workers(64, "ray").within_machine(10**9).jobs == 64
    assert Workers(64, "dask").within_machine(tell=lambda _: None).jobs == 4
