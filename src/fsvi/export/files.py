"""Graphs in files: ONNX, or torch.export's own format."""

from __future__ import annotations

import io
import json
import logging
import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from fsvi.errors import InvalidInputError
from fsvi.export.graph import Graph, quiet_torch
from fsvi.serialization import check_writable, write_bytes
from fsvi.validation import first_line

SUFFIXES = (".onnx", ".pt2")
METADATA = "fsvi.json"
"""The name of the extra file with the metadata in a .pt2 archive."""
_PACKAGES = ("onnx", "onnxscript")
_LARGEST = 2**31 - 2**20
"""An ONNX file is one message of Protocol Buffers, which has at most 2 GiB."""


def check_path(path: str | os.PathLike[str]) -> Path:
    """A path that `write_graph` can write to, checked before anything is computed."""
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        raise InvalidInputError(f"{target} ends in {target.suffix!r}: use .onnx for ONNX or .pt2 for torch.export.")
    missing = [name for name in _PACKAGES if target.suffix.lower() == ".onnx" and find_spec(name) is None]
    if missing:
        raise InvalidInputError(f"ONNX files need the package {missing[0]}: pip install onnx onnxscript, or use .pt2.")
    check_writable(target.parent)
    return target


def write_graph(path: Path, graph: Graph, metadata: Mapping[str, str]) -> None:
    """Replace the file at `path`; an interruption leaves the old one."""
    write_bytes(path, (_onnx if path.suffix.lower() == ".onnx" else _pt2)(graph, metadata))


def _pt2(graph: Graph, metadata: Mapping[str, str]) -> bytes:
    file = io.BytesIO()
    with quiet_torch():
        torch.export.save(graph.program, file, extra_files={METADATA: json.dumps(dict(metadata))})
    return file.getvalue()


def _onnx(graph: Graph, metadata: Mapping[str, str]) -> bytes:
    shared = [name for name in graph.inputs if name in graph.outputs]
    if shared:
        raise InvalidInputError(
            f"an input and an output are both called {shared[0]!r}, which ONNX does not allow: rename the input, or "
            "export to .pt2."
        )
    size = sum(value.nbytes for value in graph.program.constants.values() if isinstance(value, torch.Tensor))
    if size > _LARGEST:
        raise InvalidInputError(
            f"the draws take {size / 2**30:.1f} GiB, but an ONNX file holds at most 2: export fewer draws "
            "(num_samples), or to .pt2."
        )
    model = _converted(graph)
    _name_outputs(model.graph, graph.outputs)
    _name_batch(model.graph)
    for name, value in metadata.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = name, value
    return model.SerializeToString()


def _converted(graph: Graph) -> Any:
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)  # the converter talks about packages that are not needed
    try:
        with torch.no_grad(), quiet_torch():
            program = torch.onnx.export(graph.program, dynamo=True, input_names=graph.inputs, verbose=False)
    except torch.onnx.errors.OnnxExporterError as error:
        raise InvalidInputError(_explain(error)) from error
    finally:
        logging.disable(disabled)
    assert program is not None
    return program.model_proto


def _name_outputs(graph: Any, names: list[str]) -> None:
    """Give the outputs their names; values inside the graph that torch has called the same get others."""
    wanted = dict(zip((output.name for output in graph.output), names, strict=True))
    new = {**{name: f"{name}_inside" for name in names if name not in wanted}, **wanted}
    for node in graph.node:
        node.input[:] = [new.get(name, name) for name in node.input]
        node.output[:] = [new.get(name, name) for name in node.output]
    for value in (*graph.output, *graph.value_info, *graph.initializer):
        value.name = new.get(value.name, value.name)


def _name_batch(graph: Any) -> None:
    """Call the number of examples "batch", which torch numbers as one of many symbols."""
    symbol = graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if symbol and dim.dim_param == symbol:
                dim.dim_param = "batch"


def _explain(error: BaseException) -> str:
    """What torch says, in words for people: its causes name the operation that ONNX does not have."""
    text = ""
    cause: BaseException | None = error
    while cause is not None:
        text, cause = text + str(cause), cause.__cause__
    found = re.search(r"OpOverload\(op='\w+\.(\w+)'", text)
    if found is None:
        return f"torch cannot convert this model to ONNX: {first_line(error)}; use .pt2."
    return f"the model uses {found[1]}, which ONNX does not have: use another layer, or export to .pt2."
