"""Tracing: from a Python function of inputs to one graph of tensor operations.

torch.export runs the function once with inputs whose number of examples is a symbol. Tensors that the function uses
become constants of the graph, so it must not draw random numbers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export
from torch.utils._pytree import tree_flatten, tree_map

from fsvi.errors import FSVIError, InvalidInputError
from fsvi.inputs import Bundle, Inputs
from fsvi.networks.calls import exporting
from fsvi.validation import first_line

Summarize = Callable[[Inputs], Mapping[str, Tensor]]
"""A function from inputs to named outputs."""


@dataclass(frozen=True)
class Graph:
    """A traced function.

    Attributes:
        program: The graph; it takes inputs in the structure that `predict` takes.
        inputs: The names of the inputs' tensors.
        outputs: The names of the outputs.
    """

    program: ExportedProgram
    inputs: list[str]
    outputs: list[str]


def trace(function: Summarize, x: Inputs, names: list[str]) -> Graph:
    """The graph of `function`, for any number of examples, and for texts of any length if the model allows it."""
    program = _exported(_Traced(function), x)
    with quiet_torch():
        program = program.run_decompositions({})  # without operations in place, so that equal nodes are equal values
    share(program.graph)
    program.graph_module.recompile()
    _own_constants(program)
    spec = program.call_spec.out_spec
    assert spec is not None
    return Graph(program, names, list(spec.context))


def share(graph: torch.fx.Graph) -> None:
    """Compute once what a graph without side effects computes twice: all that draws have in common."""
    first: dict[Any, torch.fx.Node] = {}
    results = set(graph.output_node().all_input_nodes)
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        values, layout = tree_flatten((node.args, node.kwargs))
        key = (node.target, str(layout), *((type(value), value) for value in values))  # 1, 1.0 and True differ
        known = first.setdefault(key, node)
        if known is not node and node not in results:
            node.replace_all_uses_with(known)
            graph.erase_node(node)


def _own_constants(program: ExportedProgram) -> None:
    """Give every constant memory of its own; parts of a larger tensor would be written with all of it."""
    for name, value in program.constants.items():
        if isinstance(value, Tensor):
            program.constants[name] = value.detach().clone(memory_format=torch.contiguous_format)


class _Traced(nn.Module):
    """The function as a module, since torch.export takes no other; its tensors become constants."""

    def __init__(self, function: Summarize) -> None:
        super().__init__()
        self._function = [function]  # in a list, so that nothing of it is registered

    def forward(self, x: Any) -> dict[str, Tensor]:
        """The outputs at `x`, a tensor or a tree of tensors."""
        return dict(self._function[0](x if isinstance(x, Tensor) else Bundle(x)))


def _exported(traced: nn.Module, x: Inputs) -> ExportedProgram:
    tree = x if isinstance(x, Tensor) else x.tree
    batch = Dim("batch")
    shapes = tree_map(lambda leaf: {0: batch, **_lengths(leaf, isinstance(x, Tensor))}, tree)
    try:
        with torch.no_grad(), quiet_torch(), exporting():
            return export(traced, (tree,), dynamic_shapes={"x": shapes}, strict=False)
    except FSVIError:
        raise
    except Exception as error:  # torch raises errors of many kinds for what it cannot trace
        raise InvalidInputError(
            f"the network cannot be exported: {_reason(error)}; compute without Python conditions on values or on the "
            "number of examples, or serve with predict_batches."
        ) from error


def _lengths(leaf: Tensor, is_alone: bool) -> dict[int, Any]:
    """Dimensions that may differ between batches: lengths of texts, which torch fixes where the model needs it."""
    is_fixed = is_alone and leaf.is_floating_point()
    return {} if is_fixed else {axis: Dim.AUTO for axis in range(1, leaf.dim())}


def _reason(error: Exception) -> str:
    """What torch says, in words for people where they are known."""
    text = str(error)
    if "data-dependent" in text or "Could not guard on" in text or "DataDependent" in type(error).__name__:
        return "it decides by values of its input what to compute"
    if "specialized it to be a constant" in text:
        return "it fixes the number of examples"
    return first_line(error).rstrip(".")


@contextmanager
def quiet_torch() -> Iterator[None]:
    """A context without warnings of torch about its own code."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*isinstance\(treespec, LeafSpec\)", category=FutureWarning)
        yield
