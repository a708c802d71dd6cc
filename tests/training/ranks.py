"""Train on two processes: `torchrun --nproc-per-node=2 ranks.py FOLDER`.

Each case is a function without arguments. What it returns on each process, or the error that ended it, is under its
name in FOLDER/RANK.pt. `test_distributed.py` calls some of the cases too, in one process.
"""

import os
import random
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import fsvi
from fsvi import ranks
from fsvi_cases import MODES, Listed
from scenarios import SCENARIOS, box, copied, images, normalised, points

TOGETHER: dict[str, Any] = {
    **{name: SCENARIOS[name] for name in ("jvp", "learned_noise", "batch_norm", "rank1_batch_norm")},
    "ensemble": (lambda: fsvi.Ensemble(lambda: fsvi.MAP(plain(seed=None), fsvi.Categorical()), 2), points),
    "swag_batch_norm": (lambda: fsvi.SWAG(normalised(), fsvi.Categorical(), start=0.0), images),
    "ivon": (lambda: fsvi.IVON(plain(), fsvi.Categorical()), points),
    "gfsvi": (lambda: fsvi.GFSVI(plain(), fsvi.Categorical(), box()), points),
    "fbnn": (lambda: fsvi.FBNN(plain(), fsvi.Categorical(), box(), num_samples=4), points),
    "spg": (lambda: fsvi.SPG(plain(), fsvi.Categorical(), box(), num_prior_steps=2, num_latents=4), points),
}
EXACT = ("map", "laplace", "duq", "ensemble", "vogn", "missing", "stream")
"""trainings without random numbers, once noise and dropout are left out"""


def plain(seed: int | None = 0) -> nn.Sequential:
    if seed is not None:
        torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 2))


def quiet(method: fsvi.Method) -> fsvi.Method:
    """The method with fixed noise in all draws."""
    method.posterior.noise = lambda generator=None: torch.full_like(method.posterior.log_std, 0.7)
    return method


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
    """Points in a new order in each epoch, which processes share or not."""

    def __init__(self, num: int, kind: str) -> None:
        self.x, self.y = points(num)
        self.kind = kind
        self.seen: list[int] = []
        self.passes = 0

    def __iter__(self) -> Any:
        order = list(range(len(self.y)))
        self.passes += 1  # the first one is that of the checks before training
        if self.kind == "shuffle":
            order = torch.randperm(len(self.y)).tolist()
        if self.kind == "different" and self.passes > 1:
            random.Random(ranks.rank()).shuffle(order)
        return ((self.x[index], self.y[index]) for index in order)


# Cases ----------------------------------------------------------------------------------------------------------------


def gradients(mode: str) -> Any:
    """The gradient of 96 points in two minibatches per process, of unequal numbers of observed targets."""
    x, y = points(96)
    y[torch.arange(0, 40, 2)] = -1
    sets = torch.randn(3, 8, 2, generator=torch.Generator().manual_seed(5))
    likelihood = fsvi.Categorical(ignore_index=-1)
    method = fsvi.FSVI(plain(), likelihood, Listed(*sets), num_context=8, linearize=mode, num_samples=2)
    quiet(method).check_batch(x, y)
    method.num_data = 96
    stepper = fsvi.training.Stepper(method.train(), torch.optim.SGD(method.parameters(), lr=0.0))
    method.context = Listed(sets[0])
    own = torch.arange(96).tensor_split([20, 55] if ranks.size() == 2 else [])
    rows = own[ranks.rank()] if ranks.size() == 1 else torch.cat(own[ranks.rank() : 3 : 2])
    half = len(rows) // 3 if ranks.size() == 2 else len(rows)
    terms = stepper([(x[part], y[part]) for part in rows.split([half, len(rows) - half]) if len(part)])
    return [terms[name] for name in ("nll", "kl")], [p.grad.clone() for p in method.parameters()]


def train(name: str, **settings: Any) -> Any:
    torch.manual_seed(0)
    method, data = TOGETHER[name][0](), TOGETHER[name][1]()
    history = fsvi.fit(method, data, **{"epochs": 3, "batch_size": 4, **settings})
    return {"state": copied(method), "num_data": method.num_data, "loss": history.loss}


def exact(name: str) -> Any:
    """The state after training with 20 examples per step."""
    torch.manual_seed(0)
    data: Any = points()
    settings = {"optimizer": "sgd", "epochs": 4, "batch_size": 20 // ranks.size(), "lr": 0.05}
    likelihood = fsvi.Categorical(ignore_index=-1 if name == "missing" else None)
    if name == "missing":
        data[1][:7] = -1
    if name == "stream":
        settings, data = {**settings, "num_data": 23}, Stream(23, "plain")
    kinds = {"laplace": fsvi.Laplace, "duq": fsvi.DUQ, "vogn": fsvi.VOGN}
    method = TOGETHER[name][0]() if name == "ensemble" else kinds.get(name, fsvi.MAP)(plain(), likelihood)
    fsvi.fit(quiet(method) if name == "vogn" else method, data, **settings)
    state = copied(method)
    if name == "laplace":  # its eigenvectors are known up to their signs
        x = points()[0]
        prediction = method.predict(x)
        return {**{key: value for key, value in state.items() if "basis" not in key}, "mean": prediction.mean}
    return state


def other_start() -> Any:
    """Each process has its own initial network."""
    method = fsvi.MAP(plain(seed=ranks.rank()), fsvi.Categorical())
    fsvi.fit(method, points(), epochs=1, batch_size=4)
    return copied(method)


def seen_by(data: Any, given: Any, **settings: Any) -> Any:
    """The examples that a process has trained on in each of two epochs."""
    method = fsvi.MAP(plain(), fsvi.Categorical())
    places = {tuple(row): index for index, row in enumerate(data.x.tolist())}
    seen: list[int] = []
    epochs: list[list[int]] = []
    forward = method.forward

    def watched(x: Any, y: Any) -> Any:
        seen.extend(places[tuple(row)] for row in x.tolist())
        return forward(x, y)

    class Watch(fsvi.training.Callback):
        every_process = True

        def on_epoch_end(self, state: Any) -> None:
            epochs.append(list(seen))
            seen.clear()

    method.forward = watched
    fsvi.fit(method, given, epochs=2, batch_size=4, callbacks=[Watch()], **settings)
    return {"seen": epochs, "num_data": method.num_data, "state": copied(method)}


def loader(kind: str) -> Any:
    data = Seen(24)
    given: Any = data
    if kind != "dataset":
        sampler = DistributedSampler(data, 2, ranks.rank()) if kind == "sampler" else None
        generator = torch.Generator().manual_seed(3) if kind == "generator" else None
        given = DataLoader(data, batch_size=4, sampler=sampler, shuffle=sampler is None, generator=generator)
    return seen_by(data, given)


def stream(kind: str) -> Any:
    data = Stream(24, kind)
    return seen_by(data, DataLoader(data, batch_size=4), num_data=24)


def around_trained() -> Any:
    """Laplace around a trained network: each process has all data."""
    method = fsvi.Laplace.from_trained(fsvi.MAP(plain(), fsvi.Categorical()), points())
    return method.prior_precision, method.predict(points()[0]).mean


def uneven() -> Any:
    """Nine points in batches of four: the second process has no data in the last step."""
    torch.manual_seed(0)
    x, y = points(9)
    method = fsvi.MAP(plain(), fsvi.Categorical())
    data = DataLoader(TensorDataset(x, y), batch_size=4 if ranks.size() == 2 else 8)
    fsvi.fit(method, data, epochs=3, optimizer="sgd", lr=0.1)
    return copied(method)


def validated() -> Any:
    """Validation on the shares of both processes, next to that of one process with the same parameters."""
    held_out, alone = points(15, seed=9), []
    method = fsvi.MAP(plain(), fsvi.Categorical())

    class Check(fsvi.training.Callback):
        every_process = True

        def on_epoch_end(self, state: Any) -> None:
            alone.append(float(method.predict(held_out[0]).log_prob(held_out[1]).mean()))

    settings = {"epochs": 30, "lr": 1.0, "batch_size": 4, "validation": held_out, "patience": 2}
    history = fsvi.fit(method, points(), callbacks=[Check()], **settings)
    return {"validation": history.validation, "alone": alone, "best": history.best_epoch, "state": copied(method)}


def stopped() -> Any:
    """A function that only the first process calls stops both."""
    calls = []

    def stop(state: Any) -> None:
        calls.append(state.epoch)
        if state.epoch == 2:
            state.stop()

    history = fsvi.fit(fsvi.MAP(plain(), fsvi.Categorical()), points(), epochs=9, batch_size=4, callbacks=[stop])
    return calls, history.epochs


def statistics() -> Any:
    """BatchNorm's statistics after one step: those of each half, and those that training leaves."""
    x, y = images()
    method = fsvi.MAP(normalised(), fsvi.Categorical(), prior_variance=None)
    layer = method.net[1]
    start, means = layer.running_mean.clone(), []

    def keep(module: nn.Module, args: Any) -> None:
        if args[0].dim() == 4 and len(args[0]) == len(x) // 2 and module.training:
            means.append(args[0].detach().mean((0, 2, 3)))

    layer.register_forward_pre_hook(keep)
    fsvi.fit(method, (x, y), epochs=1, batch_size=10)
    return start, means[-1], layer.running_mean.clone()


def wrong(kind: str) -> Any:
    """What differs between processes, or cannot be shared by them."""
    (x, y), rank = points(), ranks.rank()
    settings = {"epochs": 2, "lr": 0.1 * (1 + rank)} if kind == "settings" else {"epochs": 2}
    if kind == "few":
        x, y = x[:1], y[:1]
    fsvi.fit(fsvi.MAP(plain(), fsvi.Categorical()), (x + (rank if kind == "data" else 0), y), **settings)


def continued(folder: Path, **settings: Any) -> Any:
    """Training that ends after six of twelve epochs, or continues."""

    def stop(state: Any) -> None:
        if state.epoch == 6 and not settings:
            raise KeyboardInterrupt

    class Ends(fsvi.training.Callback):
        every_process = True
        on_epoch_end = staticmethod(stop)

    method, data = SCENARIOS["jvp"][0](), points()
    try:
        history = fsvi.fit(method, data, epochs=12, batch_size=4, checkpoint=folder, callbacks=[Ends()], **settings)
    except KeyboardInterrupt:
        return None
    return {"state": copied(method), "loss": history.loss}


def cases(folder: Path) -> dict[str, Any]:
    made = {f"gradients_{mode}": partial(gradients, mode) for mode in MODES}
    made |= {f"train_{name}": partial(train, name) for name in TOGETHER}
    made |= {f"exact_{name}": partial(exact, name) for name in EXACT}
    made |= {f"loader_{kind}": partial(loader, kind) for kind in ("dataset", "shuffle", "generator", "sampler")}
    made |= {f"stream_{kind}": partial(stream, kind) for kind in ("shuffle", "plain", "different")}
    made |= {f"wrong_{kind}": partial(wrong, kind) for kind in ("data", "settings", "few")}
    made |= {case.__name__: case for case in (other_start, around_trained, uneven, validated, stopped, statistics)}
    made["options"] = partial(train, "jvp", accumulate=2, clip_norm=0.1, precision="bf16")
    made["whole"] = partial(train, "jvp", epochs=12)
    made["interrupted"] = partial(continued, folder / "two")
    made["continued_by_two"] = partial(continued, folder / "one", resume=True)
    return made


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    fsvi.training.checkpoints.INTERVAL = 0.0
    results = {}
    for name, case in cases(folder).items():
        try:
            results[name] = case()
        except fsvi.errors.FSVIError as error:
            results[name] = {"error": type(error).__name__, "text": str(error)}
    torch.save(results, folder / f"{os.environ['RANK']}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
