"""Train on two processes over loopback: `python ranks.py FOLDER`.

The processes are forked from this one, so that what takes long at the start happens once. Each case is a function of
the process's number and the case's folder. What it returns, or the error that ended it, is in FOLDER/CASE/RANK.pt.
"""

import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torch.utils.data.distributed import DistributedSampler

import fsvi
from fsvi.training.distributed import joined
from fsvi_cases import MODES, Listed, fix_noise
from reliability.kills import forked
from scenarios import SCENARIOS, box, build, copied, dense, images, normalised, points

SIZE = 2
TOGETHER: dict[str, Any] = {
    **SCENARIOS,
    "ensemble": (lambda: fsvi.Ensemble(lambda: fsvi.MAP(plain(seed=None), fsvi.Categorical()), 2), points),
    "mc_dropout": (lambda: fsvi.MCDropout(dense(), fsvi.Categorical()), points),
    "swag_batch_norm": (lambda: fsvi.SWAG(normalised(), fsvi.Categorical(), start=0.0), images),
    "laplace": (lambda: fsvi.Laplace(plain(), fsvi.Categorical()), points),
    "vogn": (lambda: fsvi.VOGN(plain(), fsvi.Categorical()), points),
    "ivon": (lambda: fsvi.IVON(plain(), fsvi.Categorical()), points),
    "vbll": (lambda: fsvi.VBLL(plain(), fsvi.Categorical()), points),
    "gfsvi": (lambda: fsvi.GFSVI(plain(), fsvi.Categorical(), box()), points),
    "fseb": (lambda: fsvi.FSEB(plain(), fsvi.Categorical(), box()), points),
    "duq": (lambda: fsvi.DUQ(plain(), fsvi.Categorical()), points),
    "fbnn": (lambda: fsvi.FBNN(plain(), fsvi.Categorical(), box(), num_samples=4), points),
    "spg": (lambda: fsvi.SPG(plain(), fsvi.Categorical(), box(), num_prior_steps=2, num_latents=4), points),
}
EXACT = ("map", "laplace", "vogn", "duq", "ensemble")
"""methods whose training has no random numbers, once noise and dropout are left out"""


def plain(seed: int | None = 0) -> nn.Sequential:
    if seed is not None:
        torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 2))


class Seen(Dataset[Any]):
    """Points that remember which of them were asked for."""

    def __init__(self, num: int) -> None:
        self.x, self.y = points(num)
        self.seen: list[int] = []

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        self.seen.append(index)
        return self.x[index], self.y[index]


class Stream(IterableDataset[Any]):
    """Points in a new order in each epoch, which processes share or not; or only every second one of them."""

    def __init__(self, num: int, kind: str, rank: int) -> None:
        self.x, self.y = points(num)
        self.kind, self.rank, self.shards_itself = kind, rank, kind == "own"
        self.passes = 0

    def __iter__(self) -> Any:
        order = list(range(len(self.y)))
        self.passes += 1  # the first one is that of the checks before training
        if self.kind == "own":
            order = order[self.rank :: SIZE]
        if self.kind == "shuffle":
            order = torch.randperm(len(self.y)).tolist()
        if self.kind == "different" and self.passes > 1:
            random.Random(self.rank).shuffle(order)
        if self.kind == "shorter" and self.rank == 1 and self.passes > 1:
            order = order[:-5]
        return ((self.x[index], self.y[index]) for index in order)


# Cases ----------------------------------------------------------------------------------------------------------------


def gradients(rank: int, folder: Path, mode: str = "jvp", num: int = 128) -> Any:
    """The largest difference between the gradient of a whole batch and that of its two parts, and of the terms."""
    x, y = points(num)
    sets = torch.randn(3, 8, 2, generator=torch.Generator().manual_seed(5))
    method = fsvi.FSVI(plain(), fsvi.Categorical(), Listed(*sets), num_context=8, linearize=mode, num_samples=2)
    noise = torch.randn(2, len(method.posterior.mean), generator=torch.Generator().manual_seed(6))
    method.begin(x, num)
    optimizer = torch.optim.Adam(method.parameter_groups(0.1))

    def backward(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        fix_noise(method, *noise)
        method.function_space.context = Listed(*sets)
        return method.backward(x, y)

    whole = [float(term) for term in backward(x, y).values()]
    wanted = [p.grad.clone() for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    rows = torch.arange(num).tensor_split([num // 3])[rank]
    with joined(None) as ranks:
        terms, total = ranks.average(method, optimizer, backward(x[rows], y[rows]), len(rows))
    found = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    assert total == num
    errors = [float((a - b).abs().max()) for a, b in zip(found, wanted, strict=True)]
    return max(errors), max(abs(float(term) - one) for term, one in zip(terms.values(), whole, strict=True))


def train(rank: int, folder: Path, name: str = "map", **settings: Any) -> Any:
    method, data = TOGETHER[name][0](), TOGETHER[name][1]()
    history = fsvi.fit(method, data, **{"epochs": 3, "batch_size": 4, **settings})
    return {"state": copied(method), "num_data": method.num_data, "loss": history.loss}


def exact(rank: int, folder: Path, name: str = "map") -> Any:
    """The state after training together with 2 × 10 of 20 examples, and after training alone with 1 × 20."""
    states = []
    for distributed, size in ((None, 10), (False, 20)):
        torch.manual_seed(0)
        make, data = TOGETHER[name]
        method = fsvi.MAP(plain(), fsvi.Categorical()) if name == "map" else make()
        if name == "vogn":
            fix_noise(method, torch.zeros_like(method.posterior.mean))
        method_settings = {"optimizer": "sgd", "epochs": 4, "batch_size": size, "lr": 0.05}
        fsvi.fit(method, data(), distributed=distributed, **method_settings)
        states.append(copied(method))
        if isinstance(method, fsvi.Laplace):  # its eigenvectors are known up to their signs
            del states[-1]["posterior.blocks.0.basis"]
            states[-1]["mean"], states[-1]["covariance"] = method.function_moments(data()[0])
    return states


def other_start(rank: int, folder: Path) -> Any:
    """Each process has its own initial network."""
    method = fsvi.MAP(plain(seed=rank), fsvi.Categorical())
    fsvi.fit(method, points(), epochs=1, batch_size=4)
    return copied(method)


def loader(rank: int, folder: Path, kind: str = "dataset") -> Any:
    """The examples that a process has seen in each of two epochs."""
    data = Seen(23)
    given: Any = data
    if kind != "dataset":
        sampler = DistributedSampler(data, SIZE, rank) if kind == "sampler" else None
        generator = torch.Generator().manual_seed(3) if kind == "generator" else None
        given = DataLoader(data, batch_size=4, sampler=sampler, shuffle=sampler is None, generator=generator)
    method = fsvi.MAP(plain(), fsvi.Categorical())
    epochs: list[list[int]] = []

    class Watch(fsvi.Callback):
        every_process = True

        def on_train_begin(self, state: Any) -> None:
            data.seen.clear()

        def on_epoch_end(self, state: Any) -> None:
            epochs.append(list(data.seen))
            data.seen.clear()

    fsvi.fit(method, given, epochs=2, batch_size=4, callbacks=[Watch()])
    return {"seen": epochs, "num_data": method.num_data, "state": copied(method)}


def stream(rank: int, folder: Path, kind: str = "shuffle", num: int = 23) -> Any:
    """The examples that a process has trained on in each of two epochs."""
    data = Stream(num, kind, rank)
    method = fsvi.MAP(plain(), fsvi.Categorical())
    places = {tuple(row): index for index, row in enumerate(data.x.tolist())}
    seen: list[int] = []
    epochs: list[list[int]] = []

    class Watch(fsvi.Callback):
        every_process = True

        def on_train_begin(self, state: Any) -> None:
            hook = lambda _, args: seen.extend(places[tuple(row)] for row in args[0].tolist())  # noqa: E731
            method.net[0].register_forward_pre_hook(hook)

        def on_epoch_end(self, state: Any) -> None:
            epochs.append(list(seen))
            seen.clear()

    fsvi.fit(method, DataLoader(data, batch_size=4), epochs=2, num_data=num, callbacks=[Watch()])
    return {"seen": epochs, "num_data": method.num_data, "state": copied(method)}


def exact_stream(rank: int, folder: Path) -> Any:
    """The state after training on a stream together with 2 × 10 of 23 examples, and alone with 1 × 20."""
    states = []
    for distributed, size in ((None, 10), (False, 20)):
        method = fsvi.MAP(plain(), fsvi.Categorical())
        data = DataLoader(Stream(23, "plain", rank), batch_size=size)
        fsvi.fit(method, data, distributed=distributed, optimizer="sgd", epochs=3, lr=0.05, num_data=23)
        states.append(copied(method))
    return states


def refused_stream(rank: int, folder: Path, kind: str = "laplace") -> Any:
    """Streams that shard themselves where all data are needed."""
    data = Stream(20, "own", rank)
    if kind == "laplace":
        fsvi.fit(fsvi.Laplace(plain(), fsvi.Categorical()), data, epochs=1, num_data=20)
    fsvi.fit(fsvi.MAP(plain(), fsvi.Categorical()), points(), epochs=1, validation=data)


def validated(rank: int, folder: Path) -> Any:
    """Validation on the shares of both processes, next to that of one process with the same parameters."""
    held_out, alone = points(15, seed=9), []
    method = fsvi.MAP(plain(), fsvi.Categorical())

    class Check(fsvi.Callback):
        every_process = True

        def on_epoch_end(self, state: Any) -> None:
            alone.append(float(method.predict(held_out[0]).log_prob(held_out[1]).mean()))

    history = fsvi.fit(
        method, points(), epochs=30, lr=1.0, batch_size=4, validation=held_out, patience=2, callbacks=[Check()]
    )
    return {"validation": history.validation, "alone": alone, "best": history.best_epoch, "state": copied(method)}


def stopped(rank: int, folder: Path) -> Any:
    """A function that only the first process calls stops both."""
    calls = []

    def stop(state: Any) -> None:
        calls.append(state.epoch)
        if state.epoch == 2:
            state.stop()

    method = fsvi.MAP(plain(), fsvi.Categorical())
    history = fsvi.fit(method, points(), epochs=9, batch_size=4, callbacks=[stop])
    return calls, history.epochs


def statistics(rank: int, folder: Path) -> Any:
    """BatchNorm's statistics after one step: those of each half, and those that training leaves."""
    x, y = images()
    method = fsvi.MAP(normalised(), fsvi.Categorical(), prior_variance=None)
    layer = method.net[1]
    start, means = layer.running_mean.clone(), []

    def keep(module: nn.Module, args: Any) -> None:
        if args[0].dim() == 4 and len(args[0]) == len(x) // SIZE and module.training:
            means.append(args[0].detach().mean((0, 2, 3)))

    layer.register_forward_pre_hook(keep)
    fsvi.fit(method, (x, y), epochs=1, batch_size=10)
    return start, means[-1], layer.running_mean.clone()


def wrong(rank: int, folder: Path, kind: str = "data") -> Any:
    """What differs between processes."""
    x, y = points()
    settings = {"epochs": 2, "lr": 0.1 * (1 + rank)} if kind == "settings" else {"epochs": 2}
    if kind == "few":
        x, y = x[:1], y[:1]
    if kind == "bad":
        settings = {"epochs": -1}
    if kind == "one_bad" and rank == 1:
        x[3] = torch.nan
    fsvi.fit(fsvi.MAP(plain(), fsvi.Categorical()), (x + (rank if kind == "data" else 0), y), **settings)


def resumable(rank: int, folder: Path, stop: int | None = None, die_after: float | None = None) -> Any:
    """Training with checkpoints; one process may kill itself after a while, or all may end after some epochs."""
    ends = Ends(stop, die_after if rank == 1 else None)
    method, data = build("jvp")
    usual = {"batch_size": 4, "checkpoint": folder / "checkpoints", "resume": True, "checkpoint_interval": 0.0}
    try:
        history = fsvi.fit(method, data, epochs=12, callbacks=[ends], **usual)
    except EndedError:
        return None
    return {"state": copied(method), "loss": history.loss}


class EndedError(Exception):
    """All processes end at the same time."""


class Ends(fsvi.Callback):
    """Ends training after an epoch, as if the job had run out of time, or kills the process after some seconds."""

    every_process = True

    def __init__(self, epoch: int | None, die_after: float | None = None) -> None:
        self.epoch, self.die_after = epoch, die_after

    def on_train_begin(self, state: Any) -> None:
        pid = os.getpid()
        if self.die_after is not None and os.fork() == 0:
            try:
                time.sleep(self.die_after)
                os.kill(pid, signal.SIGKILL)
            finally:  # also where training was faster: an error must not go on into `fit` in this copy of the process
                os._exit(0)

    def on_epoch_end(self, state: Any) -> None:
        if state.epoch == self.epoch:
            raise EndedError


# Processes ------------------------------------------------------------------------------------------------------------


def started(case: Callable[[int, Path], Any], folder: Path, size: int = SIZE) -> list[int]:
    """The case on `size` processes, which can find each other."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def work(rank: int) -> None:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        if size == 1:
            del os.environ["WORLD_SIZE"]
        told = StringIO()
        begun = time.monotonic()
        try:
            with redirect_stderr(told):
                value = case(rank, folder)
        except fsvi.FSVIError as error:
            value = {"error": type(error).__name__, "text": str(error), "told": error.is_told}
            value["seconds"] = time.monotonic() - begun
        torch.save(value, folder / f"{rank}.pt")
        lost = isinstance(value, dict) and value.get("error") == "ProcessLostError"
        while rank == 0 and not lost and len(list(folder.glob("*.pt"))) < size and time.monotonic() < begun + 9:
            time.sleep(0.01)  # the store lives in this process

    return [forked(partial(work, rank)) for rank in range(size)]


def finished(case: Callable[[int, Path], Any], folder: Path, size: int = SIZE) -> None:
    for pid in started(case, folder, size):
        _, status = os.waitpid(pid, 0)
        assert status == 0, f"{folder.name} did not end well"


def killed(folder: Path, kills: int, seed: int = 0) -> list[float]:
    """Kill a process at random moments, start again until training ends; seconds until the other one has stopped."""
    moments, waited = random.Random(seed), []
    for _ in range(kills):
        pids = started(partial(resumable, die_after=moments.uniform(0, 0.3)), folder)
        _, status = os.waitpid(pids[1], 0)
        begun = time.monotonic()
        os.waitpid(pids[0], 0)
        if os.WIFSIGNALED(status):
            waited.append(time.monotonic() - begun)
        else:
            for path in folder.glob("checkpoints/*"):  # training was faster than the kill
                path.unlink()
    finished(resumable, folder)
    return waited


def main(out: Path) -> None:
    torch.set_num_threads(1)
    for name in ("jvp", "batch_norm"):  # what is imported at the first use is imported before the fork
        method, data = build(name)
        fsvi.fit(method, data, epochs=1, validation=data, clip_norm=1.0, precision="bf16")
    for mode in MODES:
        finished(partial(gradients, mode=mode), out / f"gradients_{mode}")
    for name in TOGETHER:
        finished(partial(train, name=name), out / f"train_{name}")
    for name in EXACT:
        finished(partial(exact, name=name), out / f"exact_{name}")
    for kind in ("dataset", "shuffle", "generator", "sampler"):
        finished(partial(loader, kind=kind), out / f"loader_{kind}")
    for kind in ("shuffle", "plain", "own", "different", "shorter"):
        finished(partial(stream, kind=kind), out / f"stream_{kind}")
    finished(exact_stream, out / "exact_stream")
    for kind in ("laplace", "validation"):
        finished(partial(refused_stream, kind=kind), out / f"refused_{kind}")
    for kind in ("data", "settings", "few", "bad", "one_bad"):
        finished(partial(wrong, kind=kind), out / f"wrong_{kind}")
    for case in (other_start, validated, stopped, statistics):
        finished(case, out / case.__name__)
    options = {"accumulate": 2, "clip_norm": 0.1, "precision": "bf16"}
    finished(partial(train, name="jvp", **options), out / "options")
    finished(resumable, out / "whole")
    torch.save(killed(out / "killed", kills=2), out / "waited.pt")
    for before, after in ((2, 1), (1, 2)):  # the number of processes changes after six epochs
        folder = out / f"continued_{after}"
        finished(partial(resumable, stop=6), folder, before)
        finished(resumable, folder, after)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
