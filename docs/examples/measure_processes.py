"""Speed of one training step on one process with two threads and on two processes with one thread each.

    python docs/examples/measure_processes.py cnn --rounds 7 --steps 8

A third way has two processes that do not talk to each other. It gives the time of the computation alone, for the model
of step time in docs/scale.md: the step of two processes should take that long plus one all-reduce.

The ways alternate, round by round, because a shared machine has fast and slow minutes. Each round starts new
processes, makes three steps to warm up, and then measures. It prints medians of examples per second and of CPU time per
example, their ratios within rounds, and the share of the all-reduce in a step: by the clock, which includes waiting for
the other process, and by CPU time. CPU time depends less on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import tempfile
import time
from pathlib import Path

import torch

import fsvi
from fsvi.networks import cnn, resnet18
from fsvi.training.distributed import joined
from fsvi.training.step import Stepper

WARM = 3
NETWORKS = {"cnn": (cnn, (1, 28, 28), 128), "resnet18": (resnet18, (3, 32, 32), 32)}


def measure(name: str, method_name: str, steps: int, size: int, path: Path, together: bool = True) -> None:
    """Make steps on this process's share of the batch, and write down how long they took."""
    make, shape, batch = NETWORKS[name]
    torch.manual_seed(0)
    x, y = torch.randn(batch, *shape), torch.randint(10, (batch,))
    if method_name == "map":
        method: fsvi.Method = fsvi.MAP(make(), fsvi.Categorical())
    else:
        method = fsvi.FSVI(make(), fsvi.Categorical(), fsvi.contexts.Dataset(x), num_context=batch // 4)
    with joined(None if together else False) as ranks:
        rows = torch.arange(batch).tensor_split(size)[ranks.rank]
        x, y = method.check_batch(x[rows], y[rows])
        method.begin(x, 60_000)
        method.train()
        optimizer = torch.optim.Adam(method.parameter_groups(1e-3), fused=True)
        waited = worked = 0.0

        def average(terms: dict[str, torch.Tensor], count: int) -> tuple[dict[str, torch.Tensor], int]:
            nonlocal waited, worked
            begun, begun_cpu = time.perf_counter(), time.process_time()
            found = ranks.average(method, optimizer, terms, count)
            waited += time.perf_counter() - begun
            worked += time.process_time() - begun_cpu
            return found

        stepper = Stepper(method, optimizer, after_backward=average)
        for _ in range(WARM):
            stepper([(x, y, None)])
        waited = worked = 0.0
        begun, begun_cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            stepper([(x, y, None)])
        seconds, cpu = time.perf_counter() - begun, time.process_time() - begun_cpu
        numbers = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
        reduce = best_all_reduce(numbers) if ranks.size > 1 else 0.0
    row = {
        "numbers": numbers,
        "rate": steps * batch / seconds,
        "cpu": size * cpu / (steps * batch),
        "step": seconds / steps,
        "reduce": reduce,
        "share": waited / seconds,
        "cpu_share": worked / cpu,
    }
    path.write_text(json.dumps(row))


def best_all_reduce(numbers: int) -> float:
    """The shortest of ten all-reduces, in seconds."""
    vector, times = torch.zeros(numbers), []
    for _ in range(10):
        torch.distributed.barrier()
        begun = time.perf_counter()
        torch.distributed.all_reduce(vector)
        times.append(time.perf_counter() - begun)
    return min(times)


def run(name: str, method: str, steps: int, size: int, together: bool = True) -> dict[str, float]:
    """One round of one way; the numbers of the first process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        pids = []
        for rank in range(size):
            pid = os.fork()
            if pid == 0:
                os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
                torch.set_num_threads(2 // size)
                measure(name, method, steps, size, Path(folder) / f"{rank}.json", together)
                os._exit(0)
            pids.append(pid)
        for pid in pids:
            os.waitpid(pid, 0)
        found: dict[str, float] = json.loads((Path(folder) / "0.json").read_text())
        return found


def main() -> None:
    """Alternate, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--methods", nargs="+", default=["map", "fsvi"])
    given = parser.parse_args()
    torch.set_num_threads(1)
    fsvi.fit(
        fsvi.MAP(cnn(), fsvi.Categorical()), (torch.randn(2, 1, 28, 28), torch.tensor([0, 1])), epochs=1
    )  # imports
    for method in given.methods:
        ways = ((1, True), (2, True), (2, False))
        rounds = [[run(given.network, method, given.steps, *way) for way in ways] for _ in range(given.rounds)]
        (one, two, apart) = (
            {name: statistics.median(each[way][name] for each in rounds) for name in rounds[0][0]} for way in range(3)
        )
        speed = sorted(two["rate"] / one["rate"] for one, two, _ in rounds)
        cpu = sorted(two["cpu"] / one["cpu"] for one, two, _ in rounds)
        print(
            f"{given.network} {method}, {one['numbers']:,.0f} numbers: 1 × 2 threads {one['rate']:.0f} examples/s, "
            f"{1e3 * one['cpu']:.2f} CPU ms/example; 2 × 1 thread {two['rate']:.0f}, {1e3 * two['cpu']:.2f}; "
            f"ratio of speeds {statistics.median(speed):.2f} ({speed[0]:.2f} to {speed[-1]:.2f}), of CPU times "
            f"{statistics.median(cpu):.2f} ({cpu[0]:.2f} to {cpu[-1]:.2f}); all-reduce {two['share']:.0%} of a step by "
            f"the clock, {two['cpu_share']:.0%} of CPU time; model of a step: {1e3 * apart['step']:.1f} ms of "
            f"computation + {1e3 * two['reduce']:.1f} ms for the all-reduce = "
            f"{1e3 * (apart['step'] + two['reduce']):.1f} ms, "
            f"measured {1e3 * two['step']:.1f} ms (1 × 2 threads: {1e3 * one['step']:.1f} ms)",
            flush=True,
        )


if __name__ == "__main__":
    main()
