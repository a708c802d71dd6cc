"""Training data as minibatches, from tensors, a dataset or a DataLoader."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from fsvi.errors import InvalidInputError
from fsvi.inputs import TARGET_KEYS, concatenate, is_graph_batch, tensors_of, without_keys
from fsvi.likelihoods import Likelihood
from fsvi.methods.base import Method
from fsvi.networks.parameters import batch_norms
from fsvi.serialization import digest
from fsvi.training.samplers import deliverable_indices, owned_generators
from fsvi.validation import as_tensor, check_count, first_line

_SAMPLED, _SAMPLED_BYTES = 2_000, 2**28
"""The most examples of a dataset that are read before training, and the most memory they may take."""

Pair = tuple[Any, Tensor]
"""Inputs, a tensor or a `Bundle`, and targets."""
Unpack = str | Callable[[Any], tuple[Any, Any]]
"""Where targets are in a batch: a key, or a function from the batch to inputs and targets."""


class Batches(ABC):
    """The minibatches that `fit` trains on: validated pairs of inputs and targets on the method's device.

    BatchNorm layers cannot normalize a single example. If the network has any, a last batch of one example is merged
    into the batch before it.
    """

    num_examples: int
    """the number of different examples found in the data"""
    num_data: int
    """N, the number that sets the weight of the KL: the same, unless the user stated another one"""
    num_batches: int
    """the number of batches per epoch"""
    batch_size: int
    """the size of most batches"""
    fingerprint: str | None = None
    """a checksum of the data for checkpoints; None if the data are not in memory"""
    generators: tuple[torch.Generator, ...] = ()
    """random generators of the data source, whose states a checkpoint must keep"""

    def set_epoch(self, epoch: int) -> None:  # noqa: B027
        """The next pass is that of `epoch`, from 0; for data whose order depends on it."""

    @abstractmethod
    def examples(self) -> Pair:
        """Inputs and targets: all of them, or a sample."""

    @abstractmethod
    def ordered(self) -> Iterator[Pair]:
        """One epoch, without shuffling by fsvi."""

    @abstractmethod
    def shuffled(self) -> Iterator[Pair]:
        """One epoch, in an order drawn from torch's global generator, or in the loader's own order."""

    def mean(self, values: Tensor) -> float:
        """The mean of one number per example, in the order of `ordered`."""
        return float(values.mean())

    def weighted(self) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """As `shuffled`, with the examples' weights, 1 on average; None if all are equal."""
        return ((x, y, None) for x, y in self.shuffled())


class TensorBatches(Batches):
    """Batches of tensors in memory: validated once, indexed each epoch, with sizes that differ by at most one.

    Args:
        method: The method to train.
        x: Inputs.
        y: Targets.
        batch_size: The number of examples per batch, at most.
        num_data: N; None for the number of examples, or the sum of their weights.
        weights: How many times each example counts; None for once.
    """

    def __init__(
        self, method: Method, x: Any, y: Any, batch_size: int, num_data: int | None = None, weights: Any = None
    ) -> None:
        self.x, self.y = method.check_batch(x, y)
        self.num_examples = len(self.x)
        total: float = self.num_examples
        self.weights: Tensor | None = None
        if weights is not None:
            given = _check_weights(method, weights, self.num_examples)
            total = float(given.sum())
            self.weights = (given / given.mean()).to(self.x.device, method.dtype)
        self.num_data = max(1, round(total)) if num_data is None else num_data
        self.num_batches = math.ceil(self.num_examples / batch_size)
        if batch_size > 1 and batch_norms(method):
            self.num_batches = max(1, min(self.num_batches, self.num_examples // 2))
        self.batch_size = math.ceil(self.num_examples / self.num_batches)
        self._arranged = method.network.arranged

    @property
    def fingerprint(self) -> str:  # type: ignore[override]
        """The data's checksum."""
        weights = {} if self.weights is None else {"weights": self.weights}
        return digest({**tensors_of(self.x), "y": self.y, **weights})

    def examples(self) -> Pair:
        """All examples."""
        return self.x, self.y

    def ordered(self) -> Iterator[Pair]:
        """All examples as one batch."""
        yield self.x, self.y

    def mean(self, values: Tensor) -> float:
        """The weighted mean."""
        return float((values if self.weights is None else values * self.weights.to(values)).mean())

    def shuffled(self) -> Iterator[Pair]:
        """Every example once."""
        return ((x, y) for x, y, _ in self.weighted())

    def weighted(self) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """Every example once, with its weight."""
        if self.num_batches == 1:
            yield self.x, self.y, self.weights
            return
        for index in torch.randperm(self.num_examples).tensor_split(self.num_batches):
            yield self.take(index)

    def take(self, index: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """The examples with these numbers, and their weights."""
        index = index.to(self.y.device)
        weights = None if self.weights is None else self.weights[index]
        return self._arranged(self.x[index]), self.y[index], weights


class LoaderBatches(Batches):
    """Batches of a DataLoader, each validated when it is read.

    Args:
        method: The method to train.
        loader: The DataLoader.
        num_data: N; None counts the different examples that the loader can deliver.
    """

    def __init__(
        self, method: Method, loader: DataLoader[Any], num_data: int | None = None, unpack: Unpack | None = None
    ) -> None:
        _check_loader(loader)
        self._method, self._loader, self._unpack = method, loader, unpack
        self._indices: Sequence[Any] = deliverable_indices(loader, required=num_data is None)
        self.num_examples = len(self._indices)
        self.num_data = self.num_examples if num_data is None else num_data
        self.batch_size = loader.batch_size or math.ceil(self.num_examples / len(loader))
        self._merges = bool(batch_norms(method))
        self.num_batches = max(1, len(loader) - (self._merges and _ends_with_one(loader)))
        self.generators = owned_generators(loader)

    def examples(self) -> Pair:
        """A sample, spread evenly over the dataset."""
        first = self._collated([self._indices[0]])[0]
        most = max(2, min(_SAMPLED, _SAMPLED_BYTES // max(1, first.nbytes)))
        chosen = self._indices[:: math.ceil(self.num_examples / most)]
        return self._collated(chosen)

    def ordered(self) -> Iterator[Pair]:
        """One pass over the loader."""
        return self.shuffled()

    def shuffled(self) -> Iterator[Pair]:
        """One pass over the loader."""
        batches = map(self._checked, self._loader)
        return merge_single(batches) if self._merges else batches

    @property
    def loader(self) -> DataLoader[Any]:
        """The loader."""
        return self._loader

    def over(self, loader: DataLoader[Any]) -> Iterator[Pair]:
        """One pass over another loader of the same dataset."""
        return map(self._checked, loader)

    def _checked(self, batch: Any) -> Pair:
        return self._method.check_batch(*unpacked(batch, self._unpack))

    def _collated(self, indices: Sequence[Any]) -> Pair:
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


def unpacked(batch: Any, unpack: Unpack | None) -> tuple[Any, Any]:
    """Inputs and targets of a batch.

    Args:
        batch: A pair, or a dictionary or a batch of graphs with the targets among the inputs.
        unpack: The key of the targets, or a function from the batch to (inputs, targets). None looks for the usual
            names in dictionaries: labels, label, y, target, targets.
    """
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
    return without_keys(batch, [found]), batch[found]


def as_batches(
    method: Method, data: Any, batch_size: int, num_data: int | None = None, unpack: Unpack | None = None
) -> Batches:
    """Batches of the user's data.

    Args:
        method: The method to train, which validates the data.
        data: Tensors or arrays (x, y) or (x, y, weights), a Dataset, or a DataLoader.
        batch_size: The size of batches; a DataLoader has its own.
        num_data: N, the number of examples that the KL is weighed by. None derives it from the data.
        unpack: Where the targets are in a batch; see `unpacked`.
    """
    if unpack is not None and not callable(unpack) and not isinstance(unpack, str):
        raise InvalidInputError(f"unpack={unpack!r} must be a key, or a function from a batch to (inputs, targets).")
    if num_data is not None:
        check_count("num_data", num_data)
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, IterableDataset):
        data = DataLoader(data, batch_size=batch_size, pin_memory=method.device.type == "cuda")
    if isinstance(data, DataLoader) and isinstance(data.dataset, IterableDataset):
        from fsvi.training.streams import StreamBatches  # it builds on this module

        return StreamBatches(method, data, num_data, unpack)
    if isinstance(data, DataLoader):
        return LoaderBatches(method, data, num_data, unpack)
    if isinstance(data, Dataset):
        _check_dataset(data)
        return LoaderBatches(method, _loader(data, batch_size, method), num_data, unpack)
    if isinstance(data, Mapping) or is_graph_batch(data):
        x, y = unpacked(data, unpack)
        return TensorBatches(method, x, y, batch_size, num_data)
    if isinstance(data, (tuple, list)) and len(data) in (2, 3):
        x, y, *weights = data
        return TensorBatches(method, x, y, batch_size, num_data, *weights)
    raise InvalidInputError(
        f"data is {_described(data)}; fit needs a pair (x, y), a triple (x, y, weights), a Dataset or a DataLoader."
    )


def _loader(data: Dataset[Any], batch_size: int, method: Method) -> DataLoader[Any]:
    """A loader in random order; memory is pinned where that lets copies to the device run in the background."""
    return DataLoader(data, batch_size=batch_size, shuffle=True, pin_memory=method.device.type == "cuda")


def _check_weights(method: Method, weights: Any, num: int) -> Tensor:
    """Weights (n,) as float64; methods that cannot use them are refused."""
    weights = as_tensor("weights", weights).detach().double()
    if weights.shape != (num,):
        raise InvalidInputError(f"weights have shape {tuple(weights.shape)}; {num} examples need ({num},).")
    if not bool(weights.isfinite().all()) or bool((weights < 0).any()) or not bool((weights > 0).any()):
        raise InvalidInputError("weights must be finite numbers of at least 0, and not all of them 0.")
    if method.network.is_dense:
        raise InvalidInputError("examples with outputs at every position cannot be weighed: leave the weights out.")
    for part in method.modules():
        if isinstance(part, (Method, Likelihood)) and not part.takes_weights:
            raise InvalidInputError(
                f"{type(part).__name__} cannot weigh examples: leave the weights out, or repeat the examples instead."
            )
    return weights


def merge_single(batches: Iterable[Pair]) -> Iterator[Pair]:
    """The batches, with each one of a single example merged into the larger batch before it."""
    held: Pair | None = None
    for batch in batches:
        if held is not None and len(batch[0]) == 1 < len(held[0]):
            held = concatenate([held[0], batch[0]]), torch.cat([held[1], batch[1]])
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
