"""Training data as minibatches, from tensors, a dataset or a DataLoader."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence, Sized
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, SubsetRandomSampler, TensorDataset

from fsvi.errors import InvalidInputError
from fsvi.methods.base import Method
from fsvi.serialization import digest

_SAMPLED, _SAMPLED_BYTES = 2_000, 2**28
"""How many examples of a dataset are looked at before training at most, and how much memory they may take."""


class Batches(ABC):
    """What `fit` goes through: pairs of inputs and targets, validated and on the method's device."""

    num_data: int
    """how many examples there are"""
    num_batches: int
    """how many batches make an epoch"""
    fingerprint: str | None = None
    """what a checkpoint remembers of the data, where it can be had"""
    generators: tuple[torch.Generator, ...] = ()
    """random states of its own, which a checkpoint must keep"""

    @abstractmethod
    def examples(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets: all of them, or a sample."""

    @abstractmethod
    def ordered(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Every example once, in no random order of ours."""

    @abstractmethod
    def shuffled(self) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch, in an order drawn from torch's global generator, or as the loader has it."""


class TensorBatches(Batches):
    """Batches of tensors held in memory: validated once, indexed each epoch, of sizes as equal as can be."""

    def __init__(self, method: Method, x: Any, y: Any, batch_size: int) -> None:
        self.x, self.y = method.check_batch(x, y)
        self.num_data = len(self.x)
        self.num_batches = math.ceil(self.num_data / batch_size)
        self._arranged = method.network.arranged

    @property
    def fingerprint(self) -> str:  # type: ignore[override]
        """The data's checksum."""
        return digest({"x": self.x, "y": self.y})

    def examples(self) -> tuple[Tensor, Tensor]:
        """All of them."""
        return self.x, self.y

    def ordered(self) -> Iterator[tuple[Tensor, Tensor]]:
        """All of them at once."""
        yield self.x, self.y

    def shuffled(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Every example once."""
        if self.num_batches == 1:
            yield self.x, self.y
            return
        for index in torch.randperm(self.num_data).to(self.x.device).tensor_split(self.num_batches):
            yield self._arranged(self.x[index]), self.y[index]


class LoaderBatches(Batches):
    """Batches of a DataLoader, each validated as it comes."""

    def __init__(self, method: Method, loader: DataLoader[Any]) -> None:
        _check_loader(loader)
        self._method, self._loader = method, loader
        sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
        self._indices = _indices(loader.dataset, sampler)
        self.num_data = len(self._indices)
        self.num_batches = len(loader)
        owned = (getattr(owner, "generator", None) for owner in (loader, sampler, loader.batch_sampler))
        self.generators = tuple({id(g): g for g in owned if g is not None}.values())

    def examples(self) -> tuple[Tensor, Tensor]:
        """A sample, spread evenly over the dataset."""
        first = self._checked(self._loader.collate_fn([self._loader.dataset[self._indices[0]]]))[0]
        most = max(2, min(_SAMPLED, _SAMPLED_BYTES // max(1, first.nbytes)))
        chosen = self._indices[:: math.ceil(self.num_data / most)]
        return self._checked(self._loader.collate_fn([self._loader.dataset[i] for i in chosen]))

    def ordered(self) -> Iterator[tuple[Tensor, Tensor]]:
        """One pass over the loader."""
        return self.shuffled()

    def shuffled(self) -> Iterator[tuple[Tensor, Tensor]]:
        """One pass over the loader."""
        return map(self._checked, self._loader)

    def _checked(self, batch: Any) -> tuple[Tensor, Tensor]:
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise InvalidInputError(f"the DataLoader gives {_described(batch)}, not (inputs, targets) pairs.")
        return self._method.check_batch(*batch)


def as_batches(method: Method, data: Any, batch_size: int) -> Batches:
    """Batches of what the user gave: a pair of tensors or arrays, a dataset, or a DataLoader."""
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, DataLoader):
        return LoaderBatches(method, data)
    if isinstance(data, Dataset):
        _check_dataset(data)
        return LoaderBatches(method, DataLoader(data, batch_size=batch_size, shuffle=True))
    if isinstance(data, (tuple, list)) and len(data) == 2:
        x, y = data
        return TensorBatches(method, x, y, batch_size)
    raise InvalidInputError(f"data is {_described(data)}; fit needs a pair (x, y), a Dataset or a DataLoader.")


def _indices(dataset: Any, sampler: Any) -> Sequence[int]:
    """The examples that a loader goes through: a sampler may leave some out, for validation."""
    return sampler.indices if isinstance(sampler, SubsetRandomSampler) else range(len(dataset))


def _check_loader(loader: DataLoader[Any]) -> None:
    _check_dataset(loader.dataset)
    if not isinstance(loader.batch_sampler, Sized):
        raise InvalidInputError(
            f"the DataLoader (batch_size={loader.batch_size}) does not say how many batches it gives: "
            "let it make the batches, or give its batch sampler a length."
        )
    if len(loader) == 0:
        raise InvalidInputError(
            f"the DataLoader gives no batches: its sampler is empty, or drop_last is set and "
            f"batch_size={loader.batch_size} is more than the {len(loader.dataset)} examples."
        )


def _check_dataset(dataset: Any) -> None:
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
        raise InvalidInputError(
            f"the dataset, {_described(dataset)}, has no length or no index: the loss needs the number of examples, "
            "so give a map-style dataset."
        )
    if len(dataset) == 0:
        raise InvalidInputError(f"the dataset, {_described(dataset)}, is empty: at least one example is needed.")


def _described(value: Any) -> str:
    kind = f"a {type(value).__name__}"
    return f"{kind} of {len(value)}" if isinstance(value, (tuple, list)) else kind
