"""Train scenarios in processes that are killed at random moments and started anew: `python kill.py FOLDER NAME ...`.

The processes are forked from this one, so that what takes long at the start happens once. FOLDER/NAME/whole has the
checkpoint of a run left alone, FOLDER/NAME/killed that of the killed one.
"""

import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

import torch

import fsvi
from fsvi.training import checkpoints
from scenarios import build

EPOCHS = 20
KILLS = 3


def train(name: str, folder: Path, epochs: int = EPOCHS) -> None:
    method, data = build(name)
    fsvi.fit(method, data, epochs=epochs, batch_size=10, checkpoint=folder, resume=True)


def start(name: str, folder: Path) -> int:
    """Train in a copy of this process."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            train(name, folder)
            code = 0
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def modified(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


def kill(name: str, folder: Path, moments: random.Random) -> None:
    """Kill a process at a random moment after its first checkpoint."""
    path = folder / "checkpoint.fsvi"
    before, pid = modified(path), start(name, folder)
    deadline = time.monotonic() + 30
    while modified(path) == before and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(moments.uniform(0, 0.02))
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), f"{name} ended before it could be killed"


def main(out: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    checkpoints.INTERVAL = 0.0
    for name in names:
        train(name, out / name / "warm", epochs=1)
        moments = random.Random(name)
        for _ in range(KILLS):
            kill(name, out / name / "killed", moments)
        for folder in ("killed", "whole"):
            _, status = os.waitpid(start(name, out / name / folder), 0)
            assert status == 0, f"{name} did not end well"


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
