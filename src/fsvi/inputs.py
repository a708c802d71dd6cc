"""Inputs made of several tensors: tuples and dictionaries, with a row of every tensor per example; graphs.

A network that takes one tensor gets a `Tensor`, everywhere. All other inputs are a `Bundle`, which has the operations
of a tensor that concern examples: `len`, indexing, `split` and `to`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from fsvi.errors import InvalidInputError

_MASK = "mask"
"""Part of the name of tensors that say which positions are padding: zero there."""


class Bundle:
    """Dictionaries and tuples, nested to any depth, of tensors whose rows belong together; `bundle` makes one."""

    def __init__(self, tree: Any) -> None:
        self.tree = tree

    def named_leaves(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor with its place, such as "input_ids" or "0.mask"."""
        return _named(self.tree, "")

    def leaves(self) -> list[Tensor]:
        """The tensors, in a fixed order."""
        return [leaf for _, leaf in self.named_leaves()]

    def map(self, function: Callable[[Tensor], Tensor]) -> Bundle:
        """The same structure, with `function` applied to each tensor."""
        return Bundle(tree_map(function, self.tree))

    def named_map(self, function: Callable[[str, Tensor], Tensor]) -> Bundle:
        """As `map`, with each tensor's place as the first argument."""
        values = iter([function(name, leaf) for name, leaf in self.named_leaves()])
        return self.map(lambda _: next(values))

    def __len__(self) -> int:
        return len(next(self.named_leaves())[1])

    def __getitem__(self, index: Any) -> Any:
        """The tensor or part under a key, or the examples that `index` selects."""
        if isinstance(index, str):
            return self.tree[index]
        return self.map(lambda leaf: leaf[index.to(leaf.device) if isinstance(index, Tensor) else index])

    def split(self, size: int) -> list[Bundle]:
        """Pieces of at most `size` examples."""
        return [self[start : start + size] for start in range(0, len(self), size)]

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Bundle:
        """The same on another device."""
        return self.map(lambda leaf: leaf.to(device, non_blocking=non_blocking))

    @property
    def device(self) -> torch.device:
        """Where the first tensor is."""
        return self.leaves()[0].device

    @property
    def nbytes(self) -> int:
        """The memory that all tensors take."""
        return sum(leaf.nbytes for leaf in self.leaves())

    def __repr__(self) -> str:
        return describe_inputs(self)


class Graphs(Bundle):
    """A batch of graphs, which have different sizes, as PyTorch Geometric makes them.

    Any object counts as such a batch if it has `num_graphs`, `to_data_list`, the class method `from_data_list`, and
    `to_dict`, `apply` and `keys` for its tensors. fsvi does not import the library itself.
    """

    def __init__(self, batch: Any, examples: list[Any] | None = None) -> None:
        super().__init__(batch)
        self._examples = examples

    @staticmethod
    def joined(examples: list[Any], kind: type) -> Graphs:
        """One batch of these graphs; `kind` is the class of the batches that they come from."""
        own = next(each for each in kind.__mro__ if "from_data_list" in vars(each))  # PyG derives a class per batch
        return Graphs(own.from_data_list(examples), examples)  # type: ignore[attr-defined]

    def examples(self) -> list[Any]:
        """The graphs."""
        if self._examples is None:
            try:
                self._examples = self.tree.to_data_list()
            except RuntimeError as error:
                raise InvalidInputError(
                    f"the graphs of a {type(self.tree).__name__} cannot be told apart: make it with from_data_list."
                ) from error
        return self._examples

    def named_leaves(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor of the batch; rows are nodes, edges or graphs."""
        return _named(self.tree.to_dict(), "")

    def map(self, function: Callable[[Tensor], Tensor]) -> Graphs:
        """The same graphs, with `function` applied to each tensor of the batch."""
        if all(function(leaf) is leaf for leaf in self.leaves()):
            return self
        return Graphs(copy.copy(self.tree).apply(function))

    def __len__(self) -> int:
        return int(self.tree.num_graphs)

    def __getitem__(self, index: Any) -> Any:
        """The tensor under a key, or the graphs that `index` selects."""
        if isinstance(index, str):
            return self.tree[index]
        chosen = torch.arange(len(self))[index.cpu() if isinstance(index, Tensor) else index]
        return self.joined([self.examples()[i] for i in chosen.tolist()], type(self.tree))


TARGET_KEYS = ("labels", "label", "y", "target", "targets")
"""Where the target is in a dictionary, unless it is said otherwise; the first that is there counts."""

Inputs: TypeAlias = Tensor | Bundle
"""What a network is called with."""


def num_rows(x: Inputs) -> int:
    """The number of examples; in a graph that is exported it stays a symbol, which `len` would make a number."""
    if isinstance(x, Graphs):
        return len(x)
    leaf = x if isinstance(x, Tensor) else next(x.named_leaves())[1]
    return leaf.shape[0]


def is_graph_batch(x: Any) -> bool:
    """Whether `x` is a batch of graphs of another library, as `Graphs` describes it."""
    return hasattr(x, "to_data_list") and hasattr(x, "from_data_list") and hasattr(x, "num_graphs")


def is_structured(x: Any) -> bool:
    """Whether `x` has several tensors: a mapping, a batch of graphs, or a tuple or list of tensors or mappings."""
    if isinstance(x, (Bundle, Mapping)) or is_graph_batch(x):
        return True
    parts = x if isinstance(x, (tuple, list)) else ()
    return any(isinstance(part, Mapping) or (isinstance(part, Tensor) and part.dim() > 0) for part in parts)


def bundle(x: Any, check_leaf: Callable[[str, Any], Tensor]) -> Bundle:
    """Structured inputs as a `Bundle` with as many rows in each; `check_leaf` makes a tensor of a place and value."""
    if isinstance(x, Graphs) or is_graph_batch(x):
        return _checked_graphs(x if isinstance(x, Graphs) else Graphs(without_targets(x)), check_leaf)
    made = Bundle(_normalized(x.tree if isinstance(x, Bundle) else x, "", check_leaf))
    for name, leaf in made.named_leaves():
        if leaf.dim() == 0:
            raise InvalidInputError(f"inputs {name!r} are a single number: a row per example is needed.")
    sizes = {name: len(leaf) for name, leaf in made.named_leaves()}
    if not sizes:
        raise InvalidInputError("inputs have no tensors: at least one is needed.")
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name!r} has {size}" for name, size in sizes.items())
        raise InvalidInputError(f"the parts of the inputs have different numbers of examples: {listed}.")
    return made


def without_targets(batch: Any, keys: Sequence[str] = TARGET_KEYS) -> Any:
    """A dictionary or a batch of graphs without the keys that hold targets."""
    if not is_graph_batch(batch):
        return {key: value for key, value in batch.items() if key not in keys}
    batch = copy.copy(batch)
    for key in keys:
        if key in batch:
            del batch[key]
    return batch


def concatenate(parts: Sequence[Inputs]) -> Inputs:
    """The examples of several inputs of one structure, one after the other.

    Texts of different lengths are padded with zeros at the end if the inputs have a mask, which is zero there too.
    """
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(list(parts))  # type: ignore[arg-type]
    bundles = [part for part in parts if isinstance(part, Bundle)]
    names = [[name for name, _ in part.named_leaves()] for part in bundles]
    if len(bundles) < len(parts) or any(each != names[0] for each in names):
        listed = " and ".join(sorted({describe_inputs(part) for part in parts}))
        raise InvalidInputError(f"inputs of different structures cannot be joined: {listed}.")
    if isinstance(first, Graphs):
        graphs = [graph for part in bundles if isinstance(part, Graphs) for graph in part.examples()]
        return Graphs.joined(graphs, type(first.tree))
    columns = list(zip(*(part.leaves() for part in bundles), strict=True))
    padded = iter([torch.cat(_padded(name, column, names[0])) for name, column in zip(names[0], columns, strict=True)])
    return bundles[0].map(lambda _: next(padded))


def signature(x: Inputs) -> Any:
    """What must not change between batches: the shape of one example; for structures, names, types and dimensions.

    Lengths of texts may differ between batches, so sizes of structured inputs and of integer inputs are left out.
    """
    if isinstance(x, Tensor):
        return tuple(x.shape[1:]) if x.is_floating_point() else (str(x.dtype), x.dim())
    return tuple((name, str(leaf.dtype), leaf.dim()) for name, leaf in x.named_leaves())


def example_shape(x: Inputs) -> Any:
    """The shape of one example; for structures, one per tensor by its place. Sizes of graphs are left out."""
    if isinstance(x, Tensor):
        return x.shape[1:]
    if isinstance(x, Graphs):
        return {name: list(leaf.shape[1:]) if leaf.is_floating_point() else [] for name, leaf in x.named_leaves()}
    return {name: list(leaf.shape[1:]) for name, leaf in x.named_leaves()}


def describe_inputs(x: Inputs) -> str:
    """Inputs in words for error messages: shapes of one example."""
    if isinstance(x, Tensor):
        return f"shape {tuple(x.shape[1:])} and type {x.dtype}"
    shapes = example_shape(x)
    parts = (f"{name!r}: {tuple(shapes[name])} {leaf.dtype}" for name, leaf in x.named_leaves())
    return ("graphs of {" if isinstance(x, Graphs) else "{") + ", ".join(parts) + "}"


def tensors_of(x: Inputs, name: str = "x") -> dict[str, Tensor]:
    """The tensors by unique names, for checksums."""
    return {name: x} if isinstance(x, Tensor) else {f"{name}.{place}": leaf for place, leaf in x.named_leaves()}


def _named(tree: Any, place: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a tree that may hold other things too."""
    if isinstance(tree, Tensor):
        yield place, tree
        return
    parts = tree.items() if isinstance(tree, Mapping) else enumerate(tree) if isinstance(tree, tuple) else ()
    for key, part in parts:
        name = "-".join(key) if isinstance(key, tuple) else str(key)  # edges between two kinds of nodes
        yield from _named(part, f"{place}.{name}" if place else name)


def _checked_graphs(graphs: Graphs, check_leaf: Callable[[str, Any], Tensor]) -> Graphs:
    if len(graphs) == 0 or not graphs.leaves():
        raise InvalidInputError("inputs are a batch without graphs: at least one is needed.")
    checked = {id(leaf): check_leaf(name, leaf) for name, leaf in graphs.named_leaves()}
    return graphs.map(lambda leaf: checked.get(id(leaf), leaf))


def _normalized(tree: Any, place: str, check_leaf: Callable[[str, Any], Tensor]) -> Any:
    """Plain dictionaries with sorted keys, and tuples."""
    if isinstance(tree, Mapping):
        if not all(isinstance(key, str) for key in tree):
            raise InvalidInputError(f"inputs have the keys {list(tree)}: names of the network's arguments are needed.")
        return {key: _normalized(tree[key], f"{place}.{key}" if place else key, check_leaf) for key in sorted(tree)}
    has_arrays = isinstance(tree, (tuple, list)) and any(isinstance(part, np.ndarray) and part.ndim for part in tree)
    if isinstance(tree, (tuple, list)) and (has_arrays or is_structured(tree)):
        parts = enumerate(tree)
        return tuple(_normalized(part, f"{place}.{i}" if place else str(i), check_leaf) for i, part in parts)
    return check_leaf(place, tree)


def _padded(name: str, column: Sequence[Tensor], names: Sequence[str]) -> list[Tensor]:
    shapes = {tuple(leaf.shape[1:]) for leaf in column}
    if len(shapes) == 1:
        return list(column)
    has_mask = any(_MASK in each for each in names)
    if not has_mask or len({(leaf.dim(), leaf.shape[2:]) for leaf in column}) > 1:
        listed = " and ".join(map(str, sorted(shapes)))
        raise InvalidInputError(
            f"inputs {name!r} have examples of different shapes, {listed}, and no mask that would say what is "
            "padding: give examples of one length."
        )
    longest = max(leaf.shape[1] for leaf in column)
    return [F.pad(leaf, [*[0] * (2 * (leaf.dim() - 2)), 0, longest - leaf.shape[1]]) for leaf in column]
