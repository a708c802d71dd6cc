"""Jobs in several processes, on a joblib backend: loky on this machine, Ray or Dask here or on a cluster.

A worker of the backend does its jobs in a child process of its own. If a job's process is killed, for example because
memory is short, only this job fails: the worker starts another child for its next job. If the main process is killed,
loky workers and their children end too, in the middle of their jobs.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from typing import IO, Any, TypeVar

import cloudpickle
import joblib
import torch

from fsvi.errors import FSVIError
from fsvi.machine import format_bytes, free_memory, num_cores
from fsvi.validation import check_choice, check_count, first_line

Job = TypeVar("Job")
Returned = TypeVar("Returned")

BACKENDS = ("loky", "ray", "dask")
"""joblib backends that can do jobs."""
_PACKAGES = {"ray": "ray", "dask": "distributed"}
"""What a backend needs besides joblib."""
_LIMITS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_BREAKDOWNS = 3
"""How many times in a row a backend may break down before a job has finished."""
_POLL = 0.5
"""Seconds between two looks at whether the main process is there."""


@dataclass(frozen=True)
class Workers:
    """How many jobs are done at the same time, where, and with how many threads each.

    The results of a job do not depend on the number of workers or on the backend, because the number of threads does
    not. A Ray cluster is found by the environment variable `RAY_ADDRESS`, a Dask scheduler by
    `DASK_SCHEDULER_ADDRESS`; without it, workers are started on this machine.

    Args:
        jobs: The number of jobs at the same time.
        backend: One of `BACKENDS`.
        threads: The number of threads per job.
    """

    jobs: int = 1
    backend: str = "loky"
    threads: int = 1

    def __post_init__(self) -> None:
        check_count("jobs", self.jobs)
        check_count("threads", self.threads)
        check_choice("backend", self.backend, BACKENDS)
        package = _PACKAGES.get(self.backend)
        if package is not None and find_spec(package) is None:
            raise FSVIError(f"the backend {self.backend!r} needs a package: pip install 'fsvi[{self.backend}]'.")

    @property
    def is_local(self) -> bool:
        """Whether the workers run on this machine."""
        variable = {"ray": "RAY_ADDRESS", "dask": "DASK_SCHEDULER_ADDRESS"}.get(self.backend)
        return variable is None or not os.environ.get(variable)

    def within_machine(self, memory: int = 0, tell: Callable[[str], None] = print) -> Workers:
        """As many workers as the cores and the memory of this machine allow; at least one, and all on a cluster.

        Args:
            memory: The bytes that one job needs.
            tell: Receives a sentence if the number is lowered.
        """
        if not self.is_local:
            return self
        limits = {f"there are {num_cores()} cores": num_cores() // self.threads}
        free = free_memory()
        if memory and free is not None:
            limits[f"one needs about {format_bytes(memory)} of memory and {format_bytes(free)} are free"] = (
                free // memory
            )
        reason, most = min(limits.items(), key=lambda item: item[1])
        jobs = max(1, most)
        if jobs >= self.jobs:
            return self
        tell(f"{jobs} instead of {self.jobs} jobs at the same time: {reason}.")
        return replace(self, jobs=jobs)

    def each_finished(
        self, function: Callable[[Job], Returned], jobs: Sequence[Job]
    ) -> Iterator[tuple[Job, Returned | FSVIError]]:
        """Each job with its result or its error, in the order in which jobs finish.

        A job whose process is killed has an error. Jobs that were lost together with a worker of the backend are done
        again.

        Args:
            function: The function that does a job, in another process; the job and its result are pickled.
            jobs: Its arguments.
        """
        left = dict(enumerate(jobs))
        breakdowns = 0
        while left:
            try:
                for index, outcome in self._each_of(function, left):
                    breakdowns = 0
                    yield left.pop(index), outcome
            except (FSVIError, GeneratorExit):
                raise
            except Exception as error:
                breakdowns += 1
                if breakdowns >= _BREAKDOWNS:
                    reason = f"{type(error).__name__}: {first_line(error)}"
                    raise FSVIError(
                        f"the workers of {self.backend} broke down {breakdowns} times ({reason})."
                    ) from error

    def _each_of(self, function: Callable[[Any], Any], jobs: dict[int, Any]) -> Iterator[tuple[int, Any]]:
        num = min(self.jobs, len(jobs))
        owner = os.getpid() if self.backend == "loky" else None  # Ray and Dask manage their own workers
        with _ENGINES[self.backend](num):
            parallel = joblib.Parallel(n_jobs=num, return_as="generator_unordered", batch_size=1, pre_dispatch=num)
            calls = [joblib.delayed(_do)(index, function, job, self.threads, owner) for index, job in jobs.items()]
            try:
                yield from parallel(calls)
            finally:
                _close_child()  # joblib has no worker for a single job at a time


# Backends -----------------------------------------------------------------------------------------------------------


@contextmanager
def _loky(num: int) -> Iterator[None]:
    from joblib.externals.loky import get_reusable_executor

    try:
        with joblib.parallel_config("loky", inner_max_num_threads=1):
            yield
    finally:
        # otherwise they stay for five minutes
        get_reusable_executor(reuse=True).shutdown(wait=False, kill_workers=True)


@contextmanager
def _ray(num: int) -> Iterator[None]:
    import ray
    from ray.util.joblib.ray_backend import RayBackend

    class UnorderedRayBackend(RayBackend):  # type: ignore[misc]
        """Ray's backend with results as they come, which works but is switched off in its base class."""

        supports_return_generator = True

    joblib.register_parallel_backend("ray", UnorderedRayBackend)
    started = not ray.is_initialized()
    if started:
        local = {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": num, "include_dashboard": False}
        try:
            ray.init(log_to_driver=False, logging_level="ERROR", **local)
        except Exception as error:
            raise FSVIError(f"Ray cannot be started or reached: {first_line(error)}") from error
    try:
        with joblib.parallel_config("ray"):
            yield
    finally:
        if started:
            ray.shutdown()


@contextmanager
def _dask(num: int) -> Iterator[None]:
    from distributed import Client

    address = os.environ.get("DASK_SCHEDULER_ADDRESS")
    local = {"n_workers": num, "threads_per_worker": 1, "dashboard_address": None}
    try:
        client = Client(address, timeout=10) if address else Client(**local)
    except Exception as error:
        raise FSVIError(f"Dask cannot be started or reached: {first_line(error)}") from error
    with client, joblib.parallel_config("dask"):
        yield


_ENGINES: dict[str, Callable[[int], AbstractContextManager[None]]] = {"loky": _loky, "ray": _ray, "dask": _dask}


# In a worker of the backend -----------------------------------------------------------------------------------------


class _Child:
    """A process that does one job after the other. It ends with the process that started it.

    Args:
        threads: The number of threads that it may use.
    """

    def __init__(self, threads: int) -> None:
        paths = os.pathsep.join(path for path in sys.path if path)
        limits = dict.fromkeys(_LIMITS, str(threads))
        self.threads = threads
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from fsvi.parallel import _serve; _serve({threads})"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **limits, "PYTHONPATH": paths},
        )

    def do(self, function: Callable[[Any], Any], job: Any) -> Any:
        """The result of a job, or its error."""
        requests, replies = self._process.stdin, self._process.stdout
        assert requests is not None and replies is not None
        try:
            pickle.dump(cloudpickle.dumps((function, job)), requests)
            requests.flush()
            return pickle.loads(pickle.load(replies))
        except (EOFError, OSError, pickle.UnpicklingError):
            return FSVIError(f"its process {_ended(self._process.wait())}.")

    @property
    def is_alive(self) -> bool:
        """Whether it can do another job."""
        return self._process.poll() is None

    def close(self) -> None:
        """End it."""
        self._process.kill()
        with suppress(BrokenPipeError):  # a request that did not arrive
            self._process.communicate()


_own = threading.local()


def _do(
    index: int, function: Callable[[Any], Any], job: Any, threads: int, owner: int | None = None
) -> tuple[int, Any]:
    """Do a job in the child of this worker; a new one if there is none, or if a job has ended it.

    Args:
        index: The number of the job.
        function: The function that does it.
        job: Its argument.
        threads: The number of threads that it may use.
        owner: The main process, if this worker must notice by itself that it is gone.
    """
    if owner is not None:
        _end_with(owner)
    if multiprocessing.parent_process() is not None:
        _ignore_interrupts()
    child: _Child | None = getattr(_own, "child", None)
    if child is None or not child.is_alive or child.threads != threads:
        _close_child()
        child = _own.child = _Child(threads)
    return index, child.do(function, job)


@cache
def _end_with(owner: int) -> None:
    """End this process, and so its child, when the process that started it is gone.

    Args:
        owner: The process that started it, or this process itself, if joblib needs no worker.
    """
    if owner != os.getpid() and os.name == "posix":  # elsewhere an orphan keeps the number of its parent
        threading.Thread(target=_watch, args=(owner,), daemon=True).start()


def _watch(owner: int) -> None:
    while os.getppid() == owner:
        time.sleep(_POLL)
    os._exit(1)


def _close_child() -> None:
    child: _Child | None = getattr(_own, "child", None)
    if child is not None:
        child.close()
        _own.child = None


def _ended(code: int) -> str:
    if code == -signal.SIGKILL:
        return "was killed, perhaps for lack of memory"
    return f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"


def _ignore_interrupts() -> None:
    """Let the process that the user started react to Ctrl-C; the others end with it."""
    with suppress(ValueError):  # only a main thread may do this
        signal.signal(signal.SIGINT, signal.SIG_IGN)


# In the child -------------------------------------------------------------------------------------------------------


def _serve(threads: int) -> None:
    """Do the jobs that come through standard input, until it is closed."""
    torch.set_num_threads(threads)
    _ignore_interrupts()
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a job prints must not get between the replies
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, requests), daemon=True).start()
    while True:
        pickle.dump(_reply(requests.get()), replies)
        replies.flush()


def _read(stream: IO[bytes], requests: queue.SimpleQueue[bytes]) -> None:
    """Pass requests on; end the process, even in the middle of a job, when the other side is gone."""
    with suppress(EOFError, OSError):
        while True:
            requests.put(pickle.load(stream))
    os._exit(1)


def _reply(request: bytes) -> bytes:
    try:
        function, job = pickle.loads(request)
        return bytes(cloudpickle.dumps(function(job)))
    except FSVIError as error:
        return bytes(cloudpickle.dumps(error))
    except MemoryError:
        return pickle.dumps(FSVIError("memory was not enough: use fewer --jobs."))
    except Exception as error:
        return pickle.dumps(FSVIError(f"{type(error).__name__}: {first_line(error)}"))
