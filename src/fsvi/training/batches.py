"""Training data as minibatches, from tensors, a dataset, a DataLoader or a stream."""

from __future__ import annotations

import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from fsvi import ranks
from fsvi.errors import InvalidInputError
from fsvi.inputs import TARGET_KEYS, concatenate, is_graph_batch, tensors_of, without_targets
from fsvi.methods.base import Method
from fsvi.networks.parameters import batch_norms
from fsvi.serialization import digest
from fsvi.training.samplers import deliverable_indices, drawn, owned_generators, shared_loader, steps_of
from fsvi.validation import as_tensor, check_count, first_line

_SAMPLED, _SAMPLED_BYTES = 2_000, 2**28
"""The most examples of a dataset that are read before training, and the most memory they may take."""

Unpack = str | Callable[[Any], tuple[Any, Any]]
"""Where targets are in a batch: a key, or a function from the batch to inputs and targets."""


class Minibatch(NamedTuple):
    """A minibatch, validated and on the method's device.

    Attributes:
        x: Inputs, a tensor or a `Bundle`.
        y: Targets.
        weights: The examples' weights, 1 on average over all data; None if all are equal.
        observed: The number of targets that are present; None if nobody has counted.
    """

    x: Any
    y: Tensor
    weights: Tensor | None = None
    observed: int | None = None


class Batches(ABC):
    """The minibatches that `fit` trains on. Processes that train together each have their share of them.

    BatchNorm layers cannot normalize a single example. If the network has any, a last batch of one example is merged
    into the batch before it.
    """

    num_examples: int
    """the number of different examples found in the data"""
    num_data: int
    """N, the number that sets the weight of the KL: the same, unless the user stated another one"""
    num_batches: int
    """the number of batches per epoch and process"""
    fingerprint: str | None = None
    """a checksum of the data for checkpoints; None if the data are not in memory"""
    generators: tuple[torch.Generator, ...] = ()
    """random generators of the data source, whose states a checkpoint must keep"""
    shards_itself = False
    """whether the source gives each process other examples"""
    checksum = 0
    """of what the last pass has read, by which processes find out that they read different data"""

    @abstractmethod
    def examples(self) -> Minibatch:
        """All examples, or a sample: the same on every process, unless the source shards itself."""

    @abstractmethod
    def one_pass(self, seed: int) -> Iterator[Minibatch]:
        """This process's share of one pass. The seed, the same on all processes, or the loader decides its order."""

    def ordered(self) -> Iterator[Minibatch]:
        """This process's share of all examples once, for validation."""
        return self.one_pass(0)


class TensorBatches(Batches):
    """Batches of tensors in memory: validated once, indexed each epoch, with sizes that differ by at most one."""

    def __init__(
        self, method: Method, x: Any, y: Any, batch_size: int, num_data: int | None = None, weights: Any = None
    ) -> None:
        self.x, self.y = method.check_batch(x, y)
        self._rank, self._ranks = ranks.rank(), ranks.size()
        self.num_examples = len(self.x)
        total: float = self.num_examples
        self.weights: Tensor | None = None
        if weights is not None:
            given = _check_weights(method, weights, self.num_examples)
            total = float(given.sum())
            self.weights = (given / given.mean()).to(self.x.device, method.dtype)
        self.num_data = max(1, round(total)) if num_data is None else num_data
        least = self._ranks * (2 if batch_size > 1 and batch_norms(method) else 1)
        self.num_batches = math.ceil(self.num_examples / (batch_size * self._ranks))
        self.num_batches = max(1, min(self.num_batches, self.num_examples // least))
        if self.num_examples < self._ranks:
            raise InvalidInputError(
                f"{self.num_examples} examples cannot be shared by {self._ranks} processes: start fewer processes."
            )
        self._arranged = method.network.arranged

    @property
    def fingerprint(self) -> str:  # type: ignore[override]
        """The data's checksum."""
        weights = {} if self.weights is None else {"weights": self.weights}
        return digest({**tensors_of(self.x), "y": self.y, **weights})

    def examples(self) -> Minibatch:
        """All examples."""
        return Minibatch(self.x, self.y, self.weights)

    def ordered(self) -> Iterator[Minibatch]:
        """All examples as one batch, or a part of them per process."""
        yield from self._parts(torch.arange(self.num_examples), 1)

    def one_pass(self, seed: int) -> Iterator[Minibatch]:
        """Every example once."""
        if self.num_batches == self._ranks == 1:
            return iter([Minibatch(self.x, self.y, self.weights)])
        order = torch.randperm(self.num_examples, generator=torch.Generator().manual_seed(seed))
        return self._parts(order, self.num_batches)

    def _parts(self, order: Tensor, num: int) -> Iterator[Minibatch]:
        for step in order.tensor_split(num):
            index = step.tensor_split(self._ranks)[self._rank].to(self.y.device)
            if len(index):
                weights = None if self.weights is None else self.weights[index]
                yield Minibatch(self._arranged(self.x[index]), self.y[index], weights)


class LoaderBatches(Batches):
    """Batches of a DataLoader, each validated when it is read."""

    def __init__(
        self, method: Method, loader: DataLoader[Any], num_data: int | None = None, unpack: Unpack | None = None
    ) -> None:
        self._method, self._unpack = method, unpack
        self._merges = bool(batch_norms(method))
        self.generators = owned_generators(loader)
        self._take_up(loader, num_data)

    def _take_up(self, loader: DataLoader[Any], num_data: int | None) -> None:
        _check_loader(loader)
        self._loader = shared_loader(loader)
        self._indices: Sequence[Any] = deliverable_indices(loader, required=num_data is None)
        self.num_examples = len(self._indices)
        self.num_data = self.num_examples if num_data is None else num_data
        merged = self._merges and _ends_with_one(loader)
        self.num_batches = max(1, math.ceil((len(loader) - merged) / ranks.size()))

    def examples(self) -> Minibatch:
        """A sample, spread evenly over the dataset."""
        first = self._collated([self._indices[0]])[0]
        most = max(2, min(_SAMPLED, _SAMPLED_BYTES // max(1, first.nbytes)))
        return self._collated(self._indices[:: math.ceil(self.num_examples / most)])

    def one_pass(self, seed: int) -> Iterator[Minibatch]:
        """One pass over the loader."""
        yield from self._merged(map(self._checked, drawn(self._loader, seed)))
        self.checksum = int(getattr(self._loader.batch_sampler, "checksum", 0))  # of all indices that processes shared

    def _merged(self, batches: Iterator[Minibatch]) -> Iterator[Minibatch]:
        return merge_single(batches) if self._merges else batches

    def _checked(self, batch: Any) -> Minibatch:
        return Minibatch(*self._method.check_batch(*unpacked(batch, self._unpack)))

    def _collated(self, indices: Sequence[Any]) -> Minibatch:
        """Some items of the dataset as one batch."""
        items = [self._loader.dataset[i] for i in indices]
        try:
            batch = self._loader.collate_fn(items)
        except (TypeError, RuntimeError, ValueError) as error:
            raise InvalidInputError(
                f"items of the dataset, {_described(items[0])} each, cannot be made into a batch: {first_line(error)}; "
                "give a DataLoader with a collate_fn for them, such as that of torch_geometric for graphs."
            ) from error
        return self._checked(batch)


class StreamBatches(LoaderBatches):
    """Batches of a DataLoader of an IterableDataset, which has no index and perhaps no length.

    An epoch is one pass over the stream. A stream that says its length ends by itself; any other ends after N examples
    at the latest, with N = `num_data`, so that an endless stream has epochs too. Processes read the same stream and
    share its batches, unless it `shards_itself`.
    """

    def _take_up(self, loader: DataLoader[Any], num_data: int | None) -> None:
        if num_data is None:
            raise InvalidInputError(
                f"the dataset, a {type(loader.dataset).__name__}, is a stream, so the number of examples for the "
                "weight of the KL is unknown: pass num_data=, the number of different examples."
            )
        self._loader = loader
        self.shards_itself = ranks.size() > 1 and bool(getattr(loader.dataset, "shards_itself", False))
        self.num_data = self.num_examples = num_data
        try:
            self._length = len(loader)
        except TypeError:  # the length is not known
            first = None if loader.batch_size else next(self.ordered(), None)  # of a stream with batches of its own
            self._length = math.ceil(num_data / (loader.batch_size or len(first.y if first else [0])))
            if self.shards_itself:
                self._length = math.ceil(self._length / ranks.size())
        self.num_batches = self._length if self.shards_itself else math.ceil(self._length / ranks.size())

    def examples(self) -> Minibatch:
        """The first examples of a pass."""
        read: list[Minibatch] = []
        for batch in self.ordered():
            read.append(batch)
            if sum(len(batch.y) for batch in read) >= _SAMPLED:
                break
        if not read:
            raise InvalidInputError(f"the stream, a {type(self._loader.dataset).__name__}, gives no examples.")
        return Minibatch(concatenate([batch.x for batch in read]), torch.cat([batch.y for batch in read]))

    def ordered(self) -> Iterator[Minibatch]:
        """The whole stream: for validation, it must have an end, and all processes read it."""
        return map(self._checked, drawn(self._loader, 0))

    def one_pass(self, seed: int) -> Iterator[Minibatch]:
        """One pass over the stream, in its own order."""
        # every worker may end with a smaller batch of its own
        batches = islice(drawn(self._loader, seed), self._length + self._loader.num_workers)
        own = batches if ranks.size() == 1 or self.shards_itself else self._own(batches)
        return self._merged(map(self._checked, own))

    def _own(self, batches: Iterator[Any]) -> Iterator[Any]:
        self.checksum = 0  # of all targets that processes have shared
        for step in steps_of(batches):
            for batch in step:
                targets = torch.as_tensor(unpacked(batch, self._unpack)[1]).detach().cpu().contiguous()
                self.checksum = zlib.crc32(targets.numpy().tobytes(), self.checksum)
            yield from step[ranks.rank() : ranks.rank() + 1]


def unpacked(batch: Any, unpack: Unpack | None) -> tuple[Any, Any]:
    """Inputs and targets of a batch."""
    if callable(unpack):
        batch = unpack(batch)
    elif isinstance(batch, Mapping) or is_graph_batch(batch):
        return _split_targets(batch, unpack)
    elif unpack is not None:
        raise InvalidInputError(f"unpack={unpack!r} is a key, but the data gives {_described(batch)}.")
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        source = "unpack" if callable(unpack) else "the DataLoader"
        hint = "" if callable(unpack) else ": unpack= can be a function from a batch to such a pair"
        raise InvalidInputError(f"{source} gives {_described(batch)}, not (inputs, targets) pairs{hint}.")
    return batch[0], batch[1]


def _split_targets(batch: Any, key: str | None) -> tuple[Any, Any]:
    """The inputs and the targets of a dictionary or graphs; an input that is alone is still passed by its name."""
    found = key if key is not None else next((name for name in TARGET_KEYS if name in batch), None)
    if found is None or found not in batch:
        wanted = f"unpack={key!r}" if key is not None else f"targets under {', '.join(TARGET_KEYS)}"
        keys = ", ".join(map(str, batch.keys()))
        raise InvalidInputError(
            f"{wanted} cannot be found in a batch with the keys {keys}: say where the targets "
            "are with unpack=, a key or a function from a batch to (inputs, targets)."
        )
    return without_targets(batch, [found]), batch[found]


def as_batches(
    method: Method, data: Any, batch_size: int, num_data: int | None = None, unpack: Unpack | None = None
) -> Batches:
    """Batches of the user's data."""
    if unpack is not None and not callable(unpack) and not isinstance(unpack, str):
        raise InvalidInputError(f"unpack={unpack!r} must be a key, or a function from a batch to (inputs, targets).")
    if num_data is not None:
        check_count("num_data", num_data)
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, Dataset):
        is_stream = isinstance(data, IterableDataset)
        if not is_stream:
            _check_dataset(data)
        # pinned memory lets copies to the device run in the background
        pinned = method.device.type == "cuda"
        data = DataLoader(data, batch_size, shuffle=None if is_stream else True, pin_memory=pinned)
    if isinstance(data, DataLoader):
        kind = StreamBatches if isinstance(data.dataset, IterableDataset) else LoaderBatches
        return kind(method, data, num_data, unpack)
    if isinstance(data, Mapping) or is_graph_batch(data):
        data = unpacked(data, unpack)
    if isinstance(data, (tuple, list)) and len(data) in (2, 3):
        x, y, *weights = data
        return TensorBatches(method, x, y, batch_size, num_data, *weights)
    raise InvalidInputError(
        f"data is {_described(data)}; fit needs a pair (x, y), a triple (x, y, weights), a Dataset or a DataLoader."
    )


def _check_weights(method: Method, weights: Any, num: int) -> Tensor:
    """Weights (n,) as float64; methods that cannot use them are refused."""
    weights = as_tensor("weights", weights).detach().double()
    if weights.shape != (num,):
        raise InvalidInputError(f"weights have shape {tuple(weights.shape)}; {num} examples need ({num},).")
    if not bool(weights.isfinite().all()) or bool((weights < 0).any()) or not bool((weights > 0).any()):
        raise InvalidInputError("weights must be finite numbers of at least 0, and not all of them 0.")
    if method.network.layout.positions:
        raise InvalidInputError("examples with outputs at every position cannot be weighed: leave the weights out.")
    for part in method.modules():
        takes = part._takes_weights if isinstance(part, Method) else getattr(part, "takes_weights", True)
        if not takes:
            raise InvalidInputError(
                f"{type(part).__name__} cannot weigh examples: leave the weights out, or repeat the examples instead."
            )
    return weights


def merge_single(batches: Iterable[Minibatch]) -> Iterator[Minibatch]:
    """The batches, with each one of a single example merged into the larger batch before it."""
    held: Minibatch | None = None
    for batch in batches:
        if held is not None and len(batch.y) == 1 < len(held.y):
            held = Minibatch(concatenate([held.x, batch.x]), torch.cat([held.y, batch.y]))
            continue
        if held is not None:
            yield held
        held = batch
    if held is not None:
        yield held


def _ends_with_one(loader: DataLoader[Any]) -> bool:
    """Whether the loader's last batch has one example; False if its batch sampler decides."""
    size = loader.batch_size
    return size is not None and size > 1 and not loader.drop_last and len(loader.sampler) % size == 1  # type: ignore[arg-type]


def _check_loader(loader: DataLoader[Any]) -> None:
    _check_dataset(loader.dataset)
    try:
        num_batches = None if loader.batch_sampler is None else len(loader)
    except TypeError:  # a sampler without a length
        num_batches = None
    if num_batches is None:
        raise InvalidInputError(
            f"the DataLoader (batch_size={loader.batch_size}) does not say how many batches it gives: "
            "set its batch_size, and give its sampler or batch sampler a length."
        )
    if num_batches == 0:
        raise InvalidInputError(
            f"the DataLoader gives no batches: its sampler is empty, or drop_last is set and "
            f"batch_size={loader.batch_size} is more than the {len(loader.dataset)} examples."  # type: ignore[arg-type]
        )


def _check_dataset(dataset: Any) -> None:
    if not isinstance(dataset, Sized):
        raise InvalidInputError(
            f"the dataset, {_described(dataset)}, has no length: the loss needs the number of examples, so give it a "
            "__len__, or make it an IterableDataset and pass num_data=."
        )
    if len(dataset) == 0:
        raise InvalidInputError(f"the dataset, {_described(dataset)}, is empty: at least one example is needed.")


def _described(value: Any) -> str:
    kind = f"a {type(value).__name__}"
    return f"{kind} of {len(value)}" if isinstance(value, (tuple, list)) else kind
