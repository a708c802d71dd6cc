"""Training data that come as a stream: an IterableDataset, which has no index and perhaps no length."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from fsvi.errors import InvalidInputError
from fsvi.inputs import concatenate
from fsvi.methods.base import Method
from fsvi.networks.parameters import batch_norms
from fsvi.training.batches import Batches, Pair, Unpack, merge_single, unpacked
from fsvi.training.samplers import owned_generators

_SAMPLED = 2_000
"""The most examples that are read before training."""


class StreamBatches(Batches):
    """Batches of a DataLoader of an IterableDataset, each validated when it is read.

    An epoch is one pass over the stream. A stream that says its length ends by itself; any other ends after N examples
    at the latest, with N = `num_data`, so that an endless stream has epochs too. Each epoch starts a new pass.

    Args:
        method: The method to train.
        loader: The loader.
        num_data: N, the number of examples that the KL is weighed by.
        unpack: Where the targets are in batches that are dictionaries.
    """

    def __init__(
        self, method: Method, loader: DataLoader[Any], num_data: int | None, unpack: Unpack | None = None
    ) -> None:
        if num_data is None:
            raise InvalidInputError(
                f"the dataset, a {type(loader.dataset).__name__}, is a stream, so the number of examples for the "
                "weight of the KL is unknown: pass num_data=, the number of different examples."
            )
        self._method, self._loader, self._unpack = method, loader, unpack
        self._merges = bool(batch_norms(method))
        self.num_data = self.num_examples = num_data
        self.batch_size = loader.batch_size or self._first_size()
        self._length = _length(loader)
        self.num_batches = math.ceil(num_data / self.batch_size) if self._length is None else self._length
        self.generators = owned_generators(loader)

    def examples(self) -> Pair:
        """The first examples of a pass."""
        read: list[Pair] = []
        for batch in self.shuffled():
            read.append(batch)
            if sum(len(y) for _, y in read) >= _SAMPLED:
                break
        if not read:
            raise InvalidInputError(f"the stream, a {type(self._loader.dataset).__name__}, gives no examples.")
        inputs, targets = zip(*read, strict=True)
        return concatenate(list(inputs)), torch.cat(targets)

    def ordered(self) -> Iterator[Pair]:
        """The whole stream: validation data, which must have an end."""
        return (self.checked(batch) for batch in self._loader)

    def shuffled(self) -> Iterator[Pair]:
        """One pass over the stream, in its own order."""
        return self.own()

    @property
    def shards_itself(self) -> bool:
        """Whether the dataset says that it gives each process other examples."""
        return bool(getattr(self._loader.dataset, "shards_itself", False))

    @property
    def dataset_name(self) -> str:
        """The name of its class, for errors."""
        return type(self._loader.dataset).__name__

    def raw(self, processes: int = 1) -> Iterator[Any]:
        """One pass over the stream, in batches as the loader gives them.

        Args:
            processes: The number of processes that share the examples of an epoch, each with a stream of its own.
        """
        # every worker may end with a smaller batch of its own
        yield from islice(self._loader, self.num_own_batches(processes) + self._loader.num_workers)

    def own(self, processes: int = 1) -> Iterator[Pair]:
        """As `raw`, validated."""
        batches = (self.checked(batch) for batch in self.raw(processes))
        return merge_single(batches) if self._merges else batches

    def num_own_batches(self, processes: int) -> int:
        """The number of batches per epoch and process if the stream shards itself: its length, or a share of N.

        Args:
            processes: The number of processes.
        """
        return math.ceil(self.num_batches / processes) if self._length is None else self._length

    def targets(self, batch: Any) -> Any:
        """The targets of a batch of the loader."""
        return unpacked(batch, self._unpack)[1]

    def checked(self, batch: Any) -> Pair:
        """A batch of the loader, validated."""
        return self._method.check_batch(*unpacked(batch, self._unpack))

    def _first_size(self) -> int:
        """The size of the first batch of a stream that makes its own batches."""
        first: tuple[Tensor, Tensor] | None = next((self.checked(b) for b in self._loader), None)
        return 1 if first is None else len(first[1])


def _length(loader: DataLoader[Any]) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None
