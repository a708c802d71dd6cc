"""Trainings that are killed at random moments and started anew until they end.

Most processes are forked from this one, so that what takes long at the start happens once; some are commands of their
own. Whoever calls this has one thread only, without which forking is not safe.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import fsvi
from fsvi.serialization import digest, read_tree
from paper.__main__ import main as command_line
from scenarios import build

EPOCHS = 20
MOMENTS = {"start": 1, "work": 3, "write": 1}
"""When a process is killed, and how often: before its first file, at any time after, in the middle of a file."""
_LEFTOVER = ".*." + "[0-9a-f]" * 16
_SLOW = 600.0
"""seconds after which a process is not waited for"""


@dataclass(frozen=True)
class Training:
    """Something that trains in a folder and goes on where it was interrupted.

    Attributes:
        name: For people.
        work: Trains in the folder, to the end.
        outcome: What must be the same, however often it was killed.
        arguments: Those of the command that does the same in a process of its own; without them, one is forked.
    """

    name: str
    work: Callable[[Path], None]
    outcome: Callable[[Path], Any]
    arguments: Callable[[Path], list[str]] | None = None

    def start(self, folder: Path) -> int:
        """A new process at work in the folder."""
        if self.arguments is not None:
            return started(self.arguments(folder))
        return forked(lambda: self.work(folder))


@dataclass
class Tally:
    """What was done to trainings, and what came of it.

    Attributes:
        kills: By the moment.
        in_a_write: Kills that left a half-written file beside the whole one.
        resumed: Killed trainings that were started anew and ended.
        identical: Those of them that ended in the same bits as one that was left alone.
        left_behind: Files, after the end, that a training left alone does not leave, and those that only it leaves.
    """

    kills: Counter[str] = field(default_factory=Counter)
    in_a_write: int = 0
    resumed: int = 0
    identical: int = 0
    left_behind: list[str] = field(default_factory=list)


def fit(name: str) -> Training:
    """`fsvi.fit` of a scenario, with a checkpoint after every epoch."""

    def work(folder: Path) -> None:
        fsvi.training.checkpoints.INTERVAL = 0.0
        method, data = build(name)
        settings = {"epochs": EPOCHS, "batch_size": 10}
        fsvi.fit(method, data, checkpoint=folder / "checkpoint", resume=True, **settings)
        (folder / "weights").write_text(digest(method.tensors()))

    def outcome(folder: Path) -> Any:
        tree = read_tree(folder / "checkpoint" / "checkpoint.fsvi", "fsvi checkpoint")
        return (folder / "weights").read_text(), tree["state"]["history"]["loss"]

    return Training(f"fit {name}", work, outcome)


def run(task: str, method: str, command: bool = False) -> Training:
    """`python -m paper run`, forked or as a `command` of its own."""

    def arguments(folder: Path) -> list[str]:
        return ["run", task, method, "--profile", "smoke", "--out", str(folder)]

    def outcome(folder: Path) -> Any:
        return {file.relative_to(folder): _contents(file) for file in files(folder) if file.suffix != ".lock"}

    def work(folder: Path) -> None:
        called(arguments(folder))

    name = f"run {task} {method}{' as a command' if command else ''}"
    return Training(name, work, outcome, arguments if command else None)


def _contents(file: Path) -> Any:
    """All that a model says, in no order; all that a result does but for times, the source's state and the checksum."""
    if file.suffix == ".fsvi":
        tree = read_tree(file, "fsvi method")
        tensors = tree.pop("tensors")
        return digest(tensors, json.dumps(tree, sort_keys=True))
    document = json.loads(file.read_text())
    return {name: value for name, value in document.items() if name not in ("seconds", "commit", "sha256")}


def forked(work: Callable[[], None]) -> int:
    """Do the work in a copy of this process."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def called(arguments: list[str]) -> None:
    """The command line within this process, without a word."""
    sys.argv = ["fsvi", *arguments]
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        try:
            command_line()
        except SystemExit as end:
            if end.code:
                raise RuntimeError(f"fsvi {' '.join(arguments)} ended with {end.code}") from end


def started(arguments: list[str]) -> int:
    """The command line as a process of its own."""
    command = [sys.executable, "-c", "from paper.__main__ import main; main()", *arguments]
    silent = (os.POSIX_SPAWN_OPEN, sys.stdout.fileno(), os.devnull, os.O_WRONLY, 0)
    return os.posix_spawn(sys.executable, command, os.environ, file_actions=[silent])


class Assassin:
    """Kills a training at random moments, which depend on the seed and on how long it takes when left alone."""

    def __init__(self, training: Training, folder: Path, seed: int) -> None:
        self.training = training
        self.folder = folder
        self.random = random.Random(f"{training.name} {seed}")
        self.tally = Tally()
        self._leave_alone()

    def kill(self, times: int) -> Tally:
        """Kill so many processes, and let every training that was killed come to its end."""
        while self.tally.kills.total() < times:
            folder = self.folder / f"after{self.tally.kills.total()}"
            folder.mkdir()
            before = self.tally.kills.total()
            while self.tally.kills.total() < times and self._kill_one(folder):
                pass
            if self.tally.kills.total() > before:
                self._finish(folder)
            shutil.rmtree(folder)
        return self.tally

    def _leave_alone(self) -> None:
        """See what comes of it and how long it takes, when what is done once a process has been done in this one."""
        warm, folder = self.folder / "warm", self.folder / "whole"
        for each in (warm, folder):
            each.mkdir(parents=True)
        self.training.work(warm)
        began, pid, firsts, statuses = time.monotonic(), self.training.start(folder), [], []
        for status in waiting(pid):
            statuses.append(status)
            if not firsts and files(folder):
                firsts.append(time.monotonic() - began)
        assert statuses[-1] == 0, f"{self.training.name} does not work even when it is left alone"
        self._first_file, self._duration = firsts[0], time.monotonic() - began
        self._expected = self.training.outcome(folder)
        self._files = {file.relative_to(folder) for file in files(folder)}

    def _kill_one(self, folder: Path) -> bool:
        """Whether the process was killed, and not done before."""
        kind = self.random.choices(list(MOMENTS), list(MOMENTS.values()))[0]
        moment, before = self._moment(kind, folder), set(leftovers(folder))
        began, pid = time.monotonic(), self.training.start(folder)
        for status in waiting(pid):
            if status is not None:
                assert status == 0, f"{self.training.name} could not go on"
                return False
            if moment(time.monotonic() - began):
                break
        os.kill(pid, signal.SIGKILL)
        if not os.WIFSIGNALED(os.waitpid(pid, 0)[1]):
            return False
        self.tally.kills[kind] += 1
        self.tally.in_a_write += bool(set(leftovers(folder)) - before)
        return True

    def _moment(self, kind: str, folder: Path) -> Callable[[float], bool]:
        """Whether it has come, so many seconds after the start."""
        if kind == "write":
            seen, wanted = set(leftovers(folder)), self.random.randint(1, 4)
            wanted += len(seen)

            def is_written(_: float) -> bool:
                seen.update(leftovers(folder))
                return len(seen) >= wanted

            return is_written
        bounds = (0.0, self._first_file) if kind == "start" else (self._first_file, self._duration)
        delay = self.random.uniform(*bounds)
        return lambda elapsed: elapsed >= delay

    def _finish(self, folder: Path) -> None:
        assert wait(self.training.start(folder)) == 0, f"{self.training.name} could not go on to its end"
        self.tally.resumed += 1
        self.tally.identical += self.training.outcome(folder) == self._expected
        found = {file.relative_to(folder) for file in files(folder)}
        self.tally.left_behind += sorted(map(str, found ^ self._files))


def waiting(pid: int) -> Iterator[int | None]:
    """The process's status again and again, None as long as it runs."""
    deadline = time.monotonic() + _SLOW
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        yield status if ended else None
        if ended:
            return
        time.sleep(0.0005)
    os.kill(pid, signal.SIGKILL)
    raise TimeoutError(f"process {pid} did not end within {_SLOW:.0f} seconds")


def wait(pid: int) -> int:
    """The status with which the process ends."""
    *_, status = waiting(pid)
    assert status is not None
    return status


def files(folder: Path) -> list[Path]:
    """Every file below the folder; it may change meanwhile."""
    return [Path(parent, name) for parent, _, names in os.walk(folder) for name in names]


def leftovers(folder: Path) -> list[Path]:
    """Files that are being written, or were when their process was killed."""
    return [file for file in files(folder) if fnmatch(file.name, _LEFTOVER)]
