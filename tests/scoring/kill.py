"""Score files in processes that are killed, or that work at the same time: `python kill.py FOLDER`.

FOLDER has the model m.fsvi and the files data/part-*.parquet. The processes are forked from this one, which has only
one thread, because it reads no file itself.
"""

import os
import signal
import sys
import time
from pathlib import Path

import pyarrow.parquet  # noqa: F401

import fsvi
from fsvi.scoring import scorers
from fsvi.scoring.scorers import TableScorer

whole = TableScorer.parts


def forked(work) -> int:
    """The number of a new process that does this and ends."""
    if (pid := os.fork()) == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return pid


def score(folder: Path, name: str) -> None:
    fsvi.predict_files(folder / "m.fsvi", folder / "data", folder / name, tell=lambda _: None)


def dying(self, path, keep, tell):
    """Kills its process in the middle of the second file."""
    for index, part in enumerate(whole(self, path, keep, tell)):
        if path.name == "part-1.parquet" and index == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        yield part


def slow(self, path, keep, tell):
    """Writes down what is scored."""
    with open(Path(path).parents[1] / "scored", "a") as file:
        file.write(f"{path.name}\n")
    time.sleep(0.3)
    return whole(self, path, keep, tell)


def main(folder: Path) -> None:
    scorers.ROWS = 5
    TableScorer.parts = dying
    _, status = os.waitpid(forked(lambda: score(folder, "killed")), 0)
    assert os.WIFSIGNALED(status), "the process ended before it could be killed"
    TableScorer.parts = slow
    pids = [forked(lambda: score(folder, "shared")) for _ in range(2)]
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
