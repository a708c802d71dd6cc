"""Training data as minibatches, from tensors or from a DataLoader."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sized
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fsvi.errors import InvalidInputError
from fsvi.methods.method import Method

_SAMPLED_INPUTS = 2_000
"""How many inputs of a DataLoader's dataset are shown to contexts and priors before training."""


class Batches:
    """What `fit` goes through: pairs of inputs and targets, validated and on the method's device."""

    num_data: int

    def inputs(self) -> Tensor:
        """Training inputs: all of them, or a sample."""
        raise NotImplementedError

    def shuffled(self) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch, in an order drawn from torch's global generator."""
        raise NotImplementedError


class TensorBatches(Batches):
    """Batches of tensors held in memory: validated once, indexed each epoch."""

    def __init__(self, method: Method, x: Any, y: Any, batch_size: int) -> None:
        self.x, self.y = method.check_batch(x, y)
        self.num_data = len(self.x)
        self.batch_size = min(batch_size, self.num_data)
        self._arranged = method.arranged
        if not self.y.is_floating_point() and method.num_outputs > 1 and bool((self.y == self.y[0]).all()):
            warnings.warn(f"all {self.num_data} labels are {int(self.y[0])}: nothing can be learned of the other classes.", stacklevel=4)

    def inputs(self) -> Tensor:
        """All of them."""
        return self.x

    def shuffled(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Every example once; the last batch may be smaller."""
        if self.batch_size == self.num_data:
            yield self.x, self.y
            return
        for index in torch.randperm(self.num_data, device="cpu").to(self.x.device).split(self.batch_size):
            yield self._arranged(self.x[index]), self.y[index]


class LoaderBatches(Batches):
    """Batches of a DataLoader, each validated as it comes."""

    def __init__(self, method: Method, loader: DataLoader[Any]) -> None:
        dataset = loader.dataset
        if not isinstance(dataset, Sized) or len(dataset) == 0:
            raise InvalidInputError("the DataLoader's dataset is empty or has no length: N must be known for the loss.")
        self.num_data = len(dataset)
        self._method, self._loader = method, loader

    @property
    def generator(self) -> torch.Generator | None:
        """The loader's own generator, whose state a checkpoint must keep."""
        return self._loader.generator

    def inputs(self) -> Tensor:
        """A sample, spread evenly over the dataset."""
        step = max(1, self.num_data // _SAMPLED_INPUTS)
        items = [self._loader.dataset[i] for i in range(0, self.num_data, step)]
        x, _ = self._method.check_batch(*self._loader.collate_fn(items))
        return x

    def shuffled(self) -> Iterator[tuple[Tensor, Tensor]]:
        """One pass over the loader."""
        for batch in self._loader:
            if not isinstance(batch, (tuple, list)) or len(batch) != 2:
                raise InvalidInputError("the DataLoader must give (inputs, targets) pairs.")
            yield self._method.check_batch(*batch)


def as_batches(method: Method, data: Any, batch_size: int) -> Batches:
    """Batches of what the user gave: a pair of tensors or arrays, a dataset, or a DataLoader."""
    if isinstance(data, DataLoader):
        return LoaderBatches(method, data)
    if isinstance(data, Dataset):
        return LoaderBatches(method, DataLoader(data, batch_size=batch_size, shuffle=True))
    if isinstance(data, (tuple, list)) and len(data) == 2:
        return TensorBatches(method, *data, batch_size)
    raise InvalidInputError(f"data is a {type(data).__name__}; fit needs a pair (x, y), a Dataset or a DataLoader.")
