"""Graphs and batches of them, with the methods of PyTorch Geometric that fsvi relies on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor


class GraphBatch:
    """Several graphs as one; `batch` says which graph a node belongs to.

    Examples are dictionaries with nodes `x`, edges `edge_index` and possibly a label `y`.
    """

    def __init__(self, store: dict[str, Tensor], num_edges: list[int]) -> None:
        self._store, self._num_edges = store, num_edges

    @classmethod
    def from_data_list(cls, graphs: list[dict[str, Tensor]]) -> GraphBatch:
        sizes = torch.tensor([len(graph["x"]) for graph in graphs])
        starts = sizes.cumsum(0) - sizes
        store = {key: torch.cat([graph[key] for graph in graphs]) for key in graphs[0] if key != "edge_index"}
        edges = [graph["edge_index"] + start for graph, start in zip(graphs, starts, strict=True)]
        store |= {"edge_index": torch.cat(edges, 1), "batch": torch.arange(len(graphs)).repeat_interleave(sizes)}
        if cls is not GraphBatch:
            raise TypeError("the library derives a class for its batches, with which graphs must not be joined.")
        return _DerivedBatch(store, [each.shape[1] for each in edges])

    def to_data_list(self) -> list[dict[str, Tensor]]:
        edges = self._store["edge_index"].split(self._num_edges, 1)
        return [self._graph(i, edges[i]) for i in range(self.num_graphs)]

    def _graph(self, i: int, edges: Tensor) -> dict[str, Tensor]:
        own = self._store["batch"] == i
        others = {
            key: value[i : i + 1] for key, value in self._store.items() if key not in ("x", "edge_index", "batch")
        }
        return {"x": self._store["x"][own], "edge_index": edges - int(own.nonzero()[0]), **others}

    @property
    def num_graphs(self) -> int:
        return len(self._num_edges)

    def to_dict(self) -> dict[str, Tensor]:
        return dict(self._store)

    def apply(self, function: Callable[[Tensor], Tensor]) -> GraphBatch:
        self._store.update({key: function(value) for key, value in self._store.items()})
        return self

    def keys(self) -> list[str]:
        return list(self._store)

    def __contains__(self, key: str) -> bool:
        return key in self._store

    def __getitem__(self, key: str) -> Tensor:
        return self._store[key]

    def __delitem__(self, key: str) -> None:
        del self._store[key]

    def __copy__(self) -> GraphBatch:
        return type(self)(dict(self._store), self._num_edges)

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("iterating gives pairs in the library: fsvi must not rely on it.")


class _DerivedBatch(GraphBatch):
    """What a batch of graphs is."""


def ring(i: int, classes: int) -> dict[str, Tensor]:
    """A ring of three to six nodes with four features and a label."""
    nodes = torch.arange(3 + i % 4)
    edges = torch.stack([nodes, nodes.roll(1)])
    return {"x": torch.randn(len(nodes), 4), "edge_index": edges, "y": torch.tensor([i % classes])}


def rings(num: int, classes: int) -> GraphBatch:
    """A batch of rings."""
    return GraphBatch.from_data_list([ring(i, classes) for i in range(num)])
