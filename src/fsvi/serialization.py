"""Files without pickle: a tree of plain values and tensors in one safetensors file with a checksum.

`write_tree` replaces the file atomically: a reader sees either the old file or the new one. `Configurable` converts an
object's constructor arguments to such a tree and back.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from glob import escape
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors

from fsvi.errors import FileFormatError, FSVIError, InvalidInputError
from fsvi.validation import first_line

FORMAT = 1
METHOD, ESTIMATOR, CHECKPOINT = "fsvi method", "fsvi estimator", "fsvi checkpoint"
"""The kinds of files that fsvi writes."""
_READERS = {
    METHOD: "fsvi.load(path)",
    ESTIMATOR: "fsvi.FSVIClassifier.load(path) or fsvi.FSVIRegressor.load(path)",
    CHECKPOINT: "fsvi.fit(..., checkpoint=folder, resume=True)",
}
"""What reads each kind of file. Errors about the wrong kind suggest it."""
_HEADER_LENGTH_BYTES = 8
_UNNAMED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_MALFORMED = (
    SafetensorError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError, AssertionError,
    MemoryError,
)  # fmt: skip
"""The errors that Python raises for a file with unexpected contents; a RecursionError is a RuntimeError."""
MOST_DRAWS = 100_000
"""More draws per prediction than anybody needs; a file that asks for more was forged."""


def write_tree(path: str | os.PathLike[str], tree: Any, kind: str) -> None:
    """Write a tree to a file."""
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(_encode(tree, "", tensors), sort_keys=True)
    metadata = {"fsvi": text, "format": str(FORMAT), "kind": kind, "sha256": digest(tensors, text)}
    write_bytes(path, _with_sorted_header(save_safetensors(tensors, metadata)))


def read_tree(path: str | os.PathLike[str], kind: str) -> Any:
    """Read a file of `write_tree`; any other file raises `FileFormatError` and runs no code."""
    try:
        data = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{path} cannot be read: {reason(error)}.") from error
    try:
        tensors = load_safetensors(data)
        metadata = _metadata(data)
    except _MALFORMED as error:
        raise FileFormatError(f"{path} is not a complete fsvi file: it is truncated or was changed.") from error
    _check_metadata(path, metadata, kind)
    if digest(tensors, metadata.get("fsvi", "")) != metadata.get("sha256"):
        raise FileFormatError(f"{path} was changed after it was written: its checksum does not match.")
    with building_from(path):
        return _decode(json.loads(metadata["fsvi"]), tensors)


def file_kind(path: str | os.PathLike[str]) -> str | None:
    """The kind of a file that `write_tree` wrote; None for any other file and for a missing one."""
    try:
        return _metadata(Path(path).read_bytes()).get("kind")
    except (OSError, *_MALFORMED):
        return None


@contextmanager
def building_from(path: str | os.PathLike[str]) -> Iterator[None]:
    """Make every error inside this context name the file; errors of fsvi keep their class."""
    try:
        yield
    except FSVIError as error:
        if str(path) in str(error):
            raise
        raise type(error)(f"{path} cannot be used: {error}") from error
    except _MALFORMED as error:
        raise FileFormatError(f"{path} has contents that this fsvi version cannot use: {first_line(error)}.") from error


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A new file that gets its name when it is complete and on the disk: a crash or an error leaves the earlier one.

    A kill leaves a hidden temporary file, which `remove_leftovers` removes.
    """
    target = Path(path)
    temporary = target.parent / f".{target.name}.{secrets.token_hex(8)}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        raise InvalidInputError(f"{target} cannot be written: {reason(error)}.") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Replace the file at `path` atomically: even after a crash it has either the old bytes or the new `data`."""
    with replacing(path) as file:
        file.write(data)


def remove_leftovers(path: str | os.PathLike[str]) -> None:
    """Remove the temporary files of processes that were killed while `replacing(path)`."""
    target = Path(path)
    for temporary in target.parent.glob(f".{escape(target.name)}.{'[0-9a-f]' * 16}"):
        temporary.unlink(missing_ok=True)


def check_writable(directory: str | os.PathLike[str]) -> Path:
    """Create `directory` and write a byte to it, so that an unwritable path is found before training."""
    folder = Path(directory)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0")
    except OSError as error:
        raise InvalidInputError(f"{folder} cannot be written to: {reason(error)}.") from error
    return folder


def reason(error: Exception) -> str:
    """Why the system refused, inside a sentence: "No space left on device"."""
    return getattr(error, "strerror", None) or first_line(error)


def check_draws(value: Any) -> int:
    """The number of draws that a file asks for, which is not larger than memory."""
    if not isinstance(value, int) or not 1 <= value <= MOST_DRAWS:
        raise FileFormatError(f"num_samples={value!r} must be a whole number from 1 to {MOST_DRAWS}.")
    return value


def digest(tensors: Mapping[str, torch.Tensor], text: str = "") -> str:
    """The SHA-256 of tensors with their names, types and shapes, and of a text."""
    sha = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = _dense(tensors[name])
        sha.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
        sha.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy; `contiguous` would leave a single number its stride of 0."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def _with_sorted_header(data: bytes) -> bytes:
    """The same file with the names in its header sorted. safetensors orders them at random, so equal trees would not
    make equal files."""
    start = _HEADER_LENGTH_BYTES + int.from_bytes(data[:_HEADER_LENGTH_BYTES], "little")
    header = json.loads(data[_HEADER_LENGTH_BYTES:start])
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _HEADER_LENGTH_BYTES)
    return len(text).to_bytes(_HEADER_LENGTH_BYTES, "little") + text + data[start:]


def _metadata(data: bytes) -> dict[str, str]:
    length = int.from_bytes(data[:_HEADER_LENGTH_BYTES], "little")
    header = json.loads(data[_HEADER_LENGTH_BYTES : _HEADER_LENGTH_BYTES + length])
    metadata: dict[str, str] = header.get("__metadata__", {})
    return metadata


def _check_metadata(path: str | os.PathLike[str], metadata: Mapping[str, str], kind: str) -> None:
    if metadata.get("kind") != kind:
        found = metadata.get("kind", "something else")
        hint = f": read it with {_READERS[found]}." if found in _READERS else "."
        raise FileFormatError(f"{path} has {found!r}, not {kind!r}{hint}")
    if metadata.get("format") != str(FORMAT):
        raise FileFormatError(f"{path} has format {metadata.get('format')!r}; this version of fsvi reads {FORMAT}.")


def _encode(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        tensors[path] = _dense(value)
        return {"$tensor": path}
    if isinstance(value, Mapping):
        encoded = {str(key): _encode(item, f"{path}/{key}", tensors) for key, item in value.items()}
        has_numbers = bool(value) and all(isinstance(key, int) for key in value)  # JSON keys are strings
        return {"$int": encoded} if has_numbers else encoded
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
    """An object that can be saved, because each constructor argument is an attribute of the same name.

    Arguments listed in `_transient` (data, networks) are not saved; they are None after loading.
    """

    _transient: ClassVar[tuple[str, ...]] = ()
    _registry: ClassVar[dict[str, type[Configurable]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Configurable._registry[name_in_files(cls)] = cls

    def config(self) -> dict[str, Any]:
        """The class's name and its constructor arguments as plain values."""
        settings = {name: self._setting(name) for name in argument_names(type(self)) if name not in self._transient}
        return {"class": name_in_files(type(self)), "settings": settings}

    def _setting(self, name: str) -> Any:
        if hasattr(self, name):
            return plain(getattr(self, name))
        kind = type(self).__name__
        raise InvalidInputError(f"{kind} cannot be saved: its argument {name!r} is no attribute of that name.")

    @staticmethod
    def from_config(config: Mapping[str, Any], **transient: Any) -> Any:
        """Build the object that `config` describes."""
        name = config.get("class")
        if not isinstance(name, str) or name not in Configurable._registry:
            for module in ("calibration", "estimators", "functions", "methods"):  # of which only a part may be in use
                import_module(f"fsvi.{module}")
        if not isinstance(name, str) or name not in Configurable._registry:
            raise FileFormatError(
                f"the file describes {name!r}, which this version of fsvi does not know: import your own classes first."
            )
        return Configurable._registry[name]._from_settings(config["settings"], **transient)

    @classmethod
    def _from_settings(cls, settings: Mapping[str, Any], **transient: Any) -> Any:
        """Build an object of this class."""
        given = {key: _rebuild(value) for key, value in settings.items()}
        absent = {key: None for key in cls._transient}
        return cls(**{**absent, **given, **transient})


def argument_names(cls: type) -> list[str]:
    """The arguments of a constructor, where `**settings` stands for those of the base class."""
    parameters = inspect.signature(cls).parameters.values()
    names = [p.name for p in parameters if p.kind not in _UNNAMED]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        names += [name for name in argument_names(cls.__mro__[1]) if name not in names]
    return names


def name_in_files(cls: type) -> str:
    """The name of a class in files: fsvi's own classes by their names, all others with their modules."""
    is_own = cls.__module__.partition(".")[0] == __name__.partition(".")[0]
    return cls.__name__ if is_own else f"{cls.__module__}.{cls.__qualname__}"


def plain(value: Any) -> Any:
    """A setting as numbers, strings, lists and dicts."""
    if isinstance(value, Configurable):
        return value.config()
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def _rebuild(value: Any) -> Any:
    """Undo `plain`."""
    if isinstance(value, dict):
        is_object = value.keys() == {"class", "settings"}
        return Configurable.from_config(value) if is_object else {key: _rebuild(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rebuild(item) for item in value]
    return value
