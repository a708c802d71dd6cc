"""Files without pickle: a tree of plain values and tensors, kept as one safetensors file with a checksum.

`write_tree` replaces the file atomically, so that a reader sees the old file or the new one and nothing in between.
`Configurable` turns an object's constructor arguments into such a tree and back.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors

from fsvi.errors import FileFormatError, InvalidInputError

FORMAT = 1
_HEADER_LENGTH_BYTES = 8


def write_tree(path: str | os.PathLike[str], tree: Any, kind: str) -> None:
    """Write `tree` (dicts, lists, plain values, tensors) to `path`; `kind` says what it is, for `read_tree` to check."""
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(_encode(tree, "", tensors), sort_keys=True)
    metadata = {"fsvi": text, "format": str(FORMAT), "kind": kind, "sha256": _digest(text, tensors)}
    write_bytes(path, save_safetensors(tensors, metadata))


def read_tree(path: str | os.PathLike[str], kind: str) -> Any:
    """Read what `write_tree` wrote; a file that is anything else raises `FileFormatError` and runs no code."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read: {error.strerror}.") from error
    metadata, tensors = _parse(path, data)
    if metadata.get("kind") != kind:
        raise FileFormatError(f"{path} holds {metadata.get('kind', 'something else')!r}, not {kind!r}.")
    if metadata.get("format") != str(FORMAT):
        raise FileFormatError(f"{path} has format {metadata.get('format')!r}; this version of fsvi reads {FORMAT}.")
    text = metadata.get("fsvi", "")
    if _digest(text, tensors) != metadata.get("sha256"):
        raise FileFormatError(f"{path} was changed after it was written: its checksum does not match.")
    return _decode(json.loads(text), tensors)


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Replace the file at `path` by `data`, atomically and durably."""
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(file.name, target)
    except OSError as error:
        raise InvalidInputError(f"{target} cannot be written: {error.strerror}.") from error


def check_writable(directory: str | os.PathLike[str]) -> Path:
    """Make `directory` and write a byte there, so that an unwritable path is found before training, not after."""
    folder = Path(directory)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0")
    except OSError as error:
        raise InvalidInputError(f"{folder} cannot be written to: {error.strerror}.") from error
    return folder


def _parse(path: str | os.PathLike[str], data: bytes) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    try:
        tensors = load_safetensors(data)
        length = int.from_bytes(data[:_HEADER_LENGTH_BYTES], "little")
        header = json.loads(data[_HEADER_LENGTH_BYTES : _HEADER_LENGTH_BYTES + length])
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise FileFormatError(f"{path} is not a whole fsvi file: it is truncated or was changed.") from error
    return header.get("__metadata__", {}), tensors


def _digest(text: str, tensors: Mapping[str, torch.Tensor]) -> str:
    sha = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        sha.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
        sha.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()


def _encode(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        tensors[path] = value.detach().cpu().contiguous().clone()
        return {"$tensor": path}
    if isinstance(value, Mapping):
        whole = all(isinstance(key, int) for key in value) and len(value) > 0
        encoded = {str(key): _encode(item, f"{path}/{key}", tensors) for key, item in value.items()}
        return {"$int": encoded} if whole else encoded
    if isinstance(value, (list, tuple)):
        return [_encode(item, f"{path}/{index}", tensors) for index, item in enumerate(value)]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise InvalidInputError(f"{path or 'the value'} is a {type(value).__name__}, which cannot be saved without pickle.")


def _decode(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if "$tensor" in value:
        return tensors[value["$tensor"]]
    if "$int" in value:
        return {int(key): _decode(item, tensors) for key, item in value["$int"].items()}
    return {key: _decode(item, tensors) for key, item in value.items()}


class Configurable:
    """An object whose constructor arguments are attributes of the same name, so that it can be written down.

    Arguments listed in `transient` (data, networks) are not written; they come back as None.
    """

    transient: ClassVar[tuple[str, ...]] = ()
    _registry: ClassVar[dict[str, type[Configurable]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Configurable._registry[cls.__name__] = cls

    def config(self) -> dict[str, Any]:
        """The class's name and its constructor arguments as plain values."""
        names = [name for name in inspect.signature(type(self)).parameters if name not in self.transient]
        return {"class": type(self).__name__, "settings": {name: _plain(getattr(self, name)) for name in names}}

    @staticmethod
    def from_config(config: Mapping[str, Any], **transient: Any) -> Any:
        """Build the object that `config` describes; `transient` supplies what was not written."""
        name = config.get("class")
        if name not in Configurable._registry:
            raise FileFormatError(f"the file describes {name!r}, which this version of fsvi does not know.")
        cls = Configurable._registry[name]
        settings = {key: _rebuild(value) for key, value in config["settings"].items()}
        absent = {key: None for key in cls.transient}
        return cls(**{**absent, **settings, **transient})


def _plain(value: Any) -> Any:
    if isinstance(value, Configurable):
        return value.config()
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _rebuild(value: Any) -> Any:
    if isinstance(value, dict) and "class" in value:
        return Configurable.from_config(value)
    if isinstance(value, list):
        return [_rebuild(item) for item in value]
    return value
