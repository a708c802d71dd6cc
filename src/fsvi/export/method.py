"""Trained methods as one graph for servers: inputs in, mean and uncertainty out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fsvi import __version__
from fsvi.errors import InvalidInputError
from fsvi.export.files import check_path, write_graph
from fsvi.export.graph import trace
from fsvi.inputs import Graphs, Inputs, num_rows
from fsvi.likelihoods import Predictive
from fsvi.networks.calls import input_names
from fsvi.networks.copies import deep_copy
from fsvi.networks.devices import make_generator
from fsvi.validation import check_count, check_inputs, check_seed

if TYPE_CHECKING:
    from fsvi.methods.base import Method

_ROWS, _OTHER_ROWS = 2, 3
_TOLERANCE = 1e-3
"""How far the graph may be from `predict` on the example inputs, relative to the largest number."""


def export_method(
    method: Method,
    path: str | os.PathLike[str],
    num_samples: int,
    seed: int,
    example: Any,
    labels: Sequence[str] | None,
) -> None:
    """Write a method as one graph; see `Method.export`."""
    check_count("num_samples", num_samples)
    target, seed = check_path(path), check_seed(seed)
    method = deep_copy(method).cpu().eval().requires_grad_(False)
    given = method.check_inputs(_made_up(method) if example is None else example)
    if isinstance(given, Graphs):
        raise InvalidInputError("batches of graphs cannot be exported, as their sizes differ: use predict_batches.")
    # exactly so many examples: a single one would be traced as a constant
    x, others = (given[torch.arange(rows) % len(given)] for rows in (_ROWS, _OTHER_ROWS))
    labels = _check_labels(method, labels)
    with torch.no_grad():
        functions = method.functions(num_samples, make_generator(seed, method.device))
        summarize = _summary(method, functions)
        draws = len(functions(x))
        graph = trace(summarize, x, input_names(method.net, x))
        _check(graph.program.module(), others, method.predict(others, num_samples, seed))
    metadata = {
        "fsvi_version": __version__,
        "method": type(method).__name__,
        "likelihood": type(method.likelihood).__name__,
        "draws": str(draws),
        "seed": str(seed),
        "inputs": json.dumps(graph.inputs),
        "outputs": json.dumps(graph.outputs),
    }
    write_graph(target, graph, metadata if labels is None else {**metadata, "labels": json.dumps(labels)})


def _summary(method: Method, functions: Callable[[Any], Tensor]) -> Callable[[Inputs], Mapping[str, Tensor]]:
    """The function to trace: from inputs to named outputs, with a row per input and the positions after it."""

    def summarize(x: Inputs) -> dict[str, Tensor]:
        f = functions(method.network.arranged(x))
        positions = f.shape[2:-1]
        p = method.predictive(f.flatten(1, -2) if positions else f)
        named = p.graph_outputs()
        if not positions:
            return named
        return {name: value.unflatten(0, (num_rows(x), *positions)) for name, value in named.items()}

    return summarize


def _check(program: Any, x: Inputs, p: Predictive) -> None:
    """Refuse a graph that computes something else than `predict`."""
    given = program(x if isinstance(x, Tensor) else x.tree)
    for name, value in p.graph_outputs().items():
        limit = _TOLERANCE * (1 + float(value.abs().max()))
        if not bool(((given[name].reshape(value.shape) - value).abs() <= limit).all()):
            raise InvalidInputError(
                f"the exported graph has another {name} than predict for {_OTHER_ROWS} inputs: the network computes "
                "different things for different batches, so serve with predict_batches."
            )


def _made_up(method: Method) -> Any:
    """Inputs of the shape that the method knows, as real numbers or, if the network does not take those, as ids."""
    shape = method.input_shape
    if shape is None:
        raise InvalidInputError("the method has seen no inputs yet: train it, or give some (example=x, --example).")
    for dtype in (method.dtype, torch.long):
        x = _examples(shape, dtype)
        try:
            method.network.outputs_at(check_inputs(x, method.dtype))
        except InvalidInputError:
            continue
        return x
    raise InvalidInputError(f"inputs of shape {shape} cannot be made up here: give some (example=x, --example).")


def _examples(shape: Any, dtype: torch.dtype) -> Any:
    """Real numbers between 0 and 1 that differ from row to row, or ids of 1; a mask of ones hides nothing."""
    if isinstance(shape, torch.Size):
        numbers = torch.rand(_OTHER_ROWS, *shape, generator=torch.Generator().manual_seed(0))
        return numbers.to(dtype) if dtype.is_floating_point else torch.ones_like(numbers, dtype=dtype)
    leaves = {name: _examples(torch.Size(size), dtype) for name, size in shape.items()}
    return tuple(leaves.values()) if all(name.isdigit() for name in leaves) else leaves


def _check_labels(method: Method, labels: Sequence[str] | None) -> list[str] | None:
    if labels is None:
        return None
    names = [str(label) for label in labels]
    if method.likelihood.is_numeric or len(names) != method.network.num_outputs:
        wanted = "real numbers" if method.likelihood.is_numeric else f"{method.network.num_outputs} classes"
        raise InvalidInputError(f"there are {len(names)} labels, but the model predicts {wanted}.")
    return names
