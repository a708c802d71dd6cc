"""Runs in several processes at the same time."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

import torch

from fsvi.errors import FSVIError

Job = TypeVar("Job")
Returned = TypeVar("Returned")


def each_finished(
    function: Callable[[Job], Returned], jobs: Sequence[Job], workers: int
) -> Iterator[tuple[Job, Returned | FSVIError]]:
    """Each job with its result or its error, in the order in which jobs finish.

    Every process has one thread, since small networks train fastest with one; so results do not depend on the number
    of processes. A script that calls this needs the guard `if __name__ == "__main__":`, as always when Python starts
    processes.

    Args:
        function: The function that does a job.
        jobs: Its arguments.
        workers: The number of processes.
    """
    workers = min(workers, len(jobs))
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _start_worker) as pool:
        try:
            futures = {pool.submit(function, job): job for job in jobs}
            for future in as_completed(futures):
                error = future.exception()
                if isinstance(error, FSVIError):
                    yield futures[future], error
                else:
                    yield futures[future], future.result()
        except BrokenProcessPool as error:
            raise FSVIError("a training process was killed, perhaps for lack of memory: use --workers 1.") from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()
            raise


def _start_worker() -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # end silently on Ctrl-C
