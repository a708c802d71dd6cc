"""A meter of operations: the bytes alive after each one, and its multiplications."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry


class Meter(TorchDispatchMode):
    """A context manager that counts the operations inside it, including backward passes.

    Memory that a kernel allocates for itself while it runs is not counted.

    Attributes:
        alive: The bytes of all tensors that exist after each operation, without those held from the beginning.
        held: The bytes of the tensors held from the beginning.
        work: Twice the multiplications of matrix products and convolutions, plus one for every number that any other
            operation creates.

    Args:
        held: Tensors that exist before the first operation.
    """

    def __init__(self, held: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.alive: list[int] = []
        self.work = 0
        self._bytes = 0
        self._storages: dict[int, weakref.ref[Any]] = {}
        for tensor in held:
            self._add(tensor)
        self.held, self._bytes = self._bytes, 0

    def restart(self) -> None:
        """Forget the operations, but keep track of the tensors that are alive."""
        self.alive, self.work = [], 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        results = func(*args, **(kwargs or {}))
        made = sum(self._add(tensor) for tensor in tree_leaves(results) if isinstance(tensor, Tensor))
        self.work += _multiplications(func)(*args, **(kwargs or {}), out_val=results) or made
        self.alive.append(self._bytes)
        return results

    def _add(self, tensor: Tensor) -> int:
        """Register a tensor and return its number of values, or 0 if its memory is already known."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._storages:
            return 0
        self._storages[key] = weakref.ref(storage, partial(self._remove, key, storage.nbytes()))
        self._bytes += storage.nbytes()
        return tensor.numel()

    def _remove(self, key: int, num_bytes: int, _: weakref.ref[Any]) -> None:
        del self._storages[key]
        self._bytes -= num_bytes


def _multiplications(func: Any) -> Callable[..., int]:
    """The formula for the work of a matrix product or a convolution; 0 for other operations."""
    formula: Callable[..., int] = flop_registry.get(func.overloadpacket, lambda *_, **__: 0)
    return formula
