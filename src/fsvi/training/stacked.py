"""Train several copies of a method at once, each on its own data, with `torch.vmap`: ten seeds in the time of two."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fsvi.errors import InvalidInputError, NonFiniteLossError
from fsvi.methods.base import Method, sum_terms
from fsvi.methods.ensemble import Ensemble
from fsvi.networks.parameters import is_dense
from fsvi.training.history import History
from fsvi.training.optimizers import Schedule, check_optimizer, make_optimizer, make_schedule
from fsvi.validation import check_count, check_positive, check_seed

Pair = tuple[Tensor, Tensor]
Tensors = dict[str, Tensor]
_HOOKS = ("after_step", "after_epoch", "own_optimizer")


def fit_together(
    methods: Sequence[Method],
    data: Sequence[Pair],
    *,
    epochs: int = 1000,
    batch_size: int = 128,
    lr: float = 1e-2,
    schedule: str | Schedule | None = "cosine",
    seed: int = 0,
    after_epoch: Callable[[int], None] | None = None,
) -> list[History]:
    """Train each method on its own data with Adam, all in one pass.

    The result is that of `fit` except for the random numbers. The methods must have the same class, without hooks
    between steps, the same architecture of dense layers and the same settings; the data must have the same shapes. A
    context that learns the bounds of the data would learn those of the first data only, so give it bounds. The members
    of ensembles are trained side by side.

    Args:
        methods: The methods.
        data: One pair (x, y) per method.
        epochs: The number of passes over the data.
        batch_size: The number of examples per step.
        lr: The learning rate at the start.
        schedule: The learning-rate schedule; see `fit`.
        seed: The seed of all random numbers.
        after_epoch: A function that is called with the number of epochs done; the methods then have their parameters of
            that moment. An error that it raises ends training.

    Returns:
        One history per method.
    """
    if any(isinstance(method, Ensemble) for method in methods):
        return _fit_ensembles(methods, data, epochs, batch_size, lr, schedule, seed, after_epoch)
    check_count("epochs", epochs)
    check_count("batch_size", batch_size)
    check_positive("lr", lr)
    _check_alike(methods, data)
    pairs = [method.check_batch(*pair) for method, pair in zip(methods, data, strict=True)]
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(check_seed(seed))
            for method, (x, y) in zip(methods, pairs, strict=True):
                method.begin(x, len(x))
                method.fit_prior(x, y)
                method.train()
            stack = _Stack(methods, lr)
            histories = _train(stack, pairs, epochs, batch_size, make_schedule(schedule), after_epoch)
        stack.write_back()
        for method, pair in zip(methods, pairs, strict=True):
            method.finish(lambda pair=pair: [pair])  # type: ignore[misc]
        return histories
    finally:
        for method in methods:
            method.eval()


def _fit_ensembles(
    methods: Sequence[Method],
    data: Sequence[Pair],
    epochs: int,
    batch_size: int,
    lr: float,
    schedule: str | Schedule | None,
    seed: int,
    after_epoch: Callable[[int], None] | None,
) -> list[History]:
    """Train the members of all ensembles; one history per ensemble, the sum of its members' histories."""
    _check_paired(methods, data)
    ensembles = [method for method in methods if isinstance(method, Ensemble)]
    if len({len(ensemble.members) for ensemble in ensembles}) > 1 or len(ensembles) < len(methods):
        raise InvalidInputError("ensembles can only be trained together with ensembles of the same size.")
    with torch.random.fork_rng(devices=[]):  # `begin` draws context points; the members begin again below
        for ensemble, pair in zip(ensembles, data, strict=True):
            x, _ = ensemble.check_batch(*pair)
            ensemble.begin(x, len(x))
    members = [member for ensemble in ensembles for member in ensemble.members]
    pairs = [pair for ensemble, pair in zip(ensembles, data, strict=True) for _ in ensemble.members]
    settings: dict[str, Any] = {"epochs": epochs, "batch_size": batch_size, "lr": lr, "schedule": schedule}
    histories = fit_together(members, pairs, **settings, seed=seed, after_epoch=after_epoch)
    for ensemble in ensembles:
        ensemble.eval()
    size = len(ensembles[0].members)
    return [_summed(histories[start : start + size]) for start in range(0, len(histories), size)]


def _summed(histories: Sequence[History]) -> History:
    total = History(seconds=sum(history.seconds for history in histories))
    for epoch in range(histories[0].epochs):
        total.record({name: sum(each.terms[name][epoch] for each in histories) for name in histories[0].terms})
    return total


class _Stack:
    """The stacked parameters of the methods and their optimizer."""

    def __init__(self, methods: Sequence[Method], lr: float) -> None:
        self.methods = methods
        first = methods[0]
        groups = first.parameter_groups(lr)
        names = {id(p): name for name, p in first.named_parameters()}
        self.names = [[names[id(p)] for p in group["params"]] for group in groups]
        parameters = [dict(method.named_parameters()) for method in methods]
        self.tensors = {
            name: nn.Parameter(torch.stack([own[name].detach() for own in parameters]))
            for group in self.names
            for name in group
        }
        stacked = [
            {"params": [self.tensors[name] for name in group], "lr": given["lr"]}
            for group, given in zip(self.names, groups, strict=True)
        ]
        self.optimizer = make_optimizer(check_optimizer("adam"), stacked)
        self.rates = [group["lr"] for group in stacked]
        self.rest = _stack_rest(methods, self.tensors)
        module = _Terms(first)

        def loss(tensors: Tensors, rest: Tensors, x: Tensor, y: Tensor) -> tuple[Tensor, Tensors]:
            values = {f"method.{name}": value for name, value in (*tensors.items(), *rest.items())}
            terms = functional_call(module, values, (x, y))
            return sum_terms(terms), terms

        self._gradients = vmap(grad(loss, has_aux=True), randomness="different")

    def step(self, x: Tensor, y: Tensor, factor: float) -> dict[str, Tensor]:
        """One step for every method; returns the terms of their losses, each (methods,)."""
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = factor * rate
        gradients, terms = self._gradients({name: p.detach() for name, p in self.tensors.items()}, self.rest, x, y)
        for name, p in self.tensors.items():
            p.grad = gradients[name]
        self.optimizer.step()
        return terms

    @torch.no_grad()
    def write_back(self) -> None:
        """Copy the trained parameters back into the methods."""
        for index, method in enumerate(self.methods):
            own = dict(method.named_parameters())
            for name, values in self.tensors.items():
                own[name].copy_(values[index])


def _stack_rest(methods: Sequence[Method], trained: Collection[str]) -> Tensors:
    """Tensors that training does not change, such as a fitted prior, stacked if the methods differ in them."""
    rest = []
    for method in methods:
        own = (*method.named_parameters(), *method.named_buffers())
        rest.append({name: tensor.detach() for name, tensor in own if name not in trained})
    stacked = {name: torch.stack([own[name] for own in rest]) for name in rest[0]}
    return {name: values for name, values in stacked.items() if bool((values != values[0]).any())}


class _Terms(nn.Module):
    """A module that returns the terms of a method's loss, so that `functional_call` can replace its parameters."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return self.method.terms(x, y)


def _train(
    stack: _Stack,
    pairs: Sequence[Pair],
    epochs: int,
    batch_size: int,
    schedule: Schedule,
    after_epoch: Callable[[int], None] | None,
) -> list[History]:
    x, y = (torch.stack(values) for values in zip(*pairs, strict=True))
    num_batches = math.ceil(x.shape[1] / batch_size)
    histories = [History() for _ in pairs]
    started = time.perf_counter()
    for epoch in range(epochs):
        sums: dict[str, Tensor] = {}
        for index, rows in enumerate(_shuffled(len(pairs), x.shape[1], num_batches)):
            done = (epoch + index / num_batches) / epochs
            for method in stack.methods:
                method.progress = (epoch + (index + 1) / num_batches) / epochs
            members = torch.arange(len(pairs))[:, None]
            terms = stack.step(x[members, rows], y[members, rows], schedule(done))
            sums = {name: sums.get(name, torch.zeros(())) + value * rows.shape[1] for name, value in terms.items()}
        _record(histories, {name: total / x.shape[1] for name, total in sums.items()}, epoch)
        if after_epoch is not None:
            stack.write_back()
            with torch.random.fork_rng(devices=[]):
                after_epoch(epoch + 1)
    seconds = (time.perf_counter() - started) / len(pairs)
    for history in histories:
        history.seconds = seconds
    return histories


def _shuffled(members: int, size: int, num_batches: int) -> Iterator[Tensor]:
    """Row numbers (members, batch): every example once, in a random order per member."""
    yield from torch.rand(members, size).argsort(1).tensor_split(num_batches, dim=1)


def _record(histories: Sequence[History], means: dict[str, Tensor], epoch: int) -> None:
    for name, values in means.items():
        if not bool(values.isfinite().all()):
            wrong = float(values[~values.isfinite()][0])
            raise NonFiniteLossError(
                f"the {name} term of the loss became {wrong} in epoch {epoch + 1}: lower the learning rate, or "
                "check the data's scale."
            )
    for index, history in enumerate(histories):
        history.record({name: float(values[index]) for name, values in means.items()})


def _check_paired(methods: Sequence[Method], data: Sequence[Pair]) -> None:
    if not methods or len(methods) != len(data):
        raise InvalidInputError(f"there are {len(methods)} methods and {len(data)} datasets: give one each.")


def _check_alike(methods: Sequence[Method], data: Sequence[Pair]) -> None:
    _check_paired(methods, data)
    first, *others = methods
    if not is_dense(first.net):
        raise InvalidInputError("fit_together needs a Sequential of dense layers: use fit.")
    watching = [hook for hook in _HOOKS if getattr(type(first), hook) is not getattr(Method, hook)]
    if watching:
        raise InvalidInputError(
            f"{type(first).__name__} has the training hook `{watching[0]}`, which fit_together does not call: use fit."
        )
    if getattr(first, "num_context_sets", 1) > 1:
        raise InvalidInputError("fit_together does not support num_context_sets above 1: use fit.")
    for index, other in enumerate(others, start=1):
        if other.config() != first.config() or other.network.architecture() != first.network.architecture():
            raise InvalidInputError(f"methods 0 and {index} differ in their settings or their networks.")
    if len({(x.shape, y.shape) for x, y in data}) > 1:
        raise InvalidInputError("the datasets differ in shape: fit_together needs equal shapes for all methods.")
