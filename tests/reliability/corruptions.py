"""Saved models and results that were spoiled at random, and what becomes of those who read them.

Bytes are spoiled as disks and transfers do it; and the contents as somebody does it who knows the format and computes
the checksum anew. Foreign pickles among them would leave a mark if anything unpickled them.
"""

import gzip
import io
import json
import math
import pickle
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import fsvi
from fsvi.serialization import read_tree, write_tree
from paper.experiment import Order
from paper.records import Result, checksum, model_path, read_result, result_path
from paper.report import write_report
from paper.runs import run
from paper.tasks.registry import TASKS

ORDER = Order("two-moons", "fsvi", "smoke")
MARK = Path("code-was-run")
Spoil = Callable[[bytes, random.Random], bytes]


@dataclass(frozen=True)
class Spoiled:
    """A file that was spoiled, and what came of reading it.

    Attributes:
        kind: How it was spoiled.
        seed: Of the random numbers.
        outcome: `detected` by an error of fsvi's, one sentence that names the file; `harmless`, since what was read is
            the same; `unnoticed`, where it is not; `unclear`, an error of fsvi's that is no such sentence;
            `traceback`, any other error; or `code run`.
        said: The error.
    """

    kind: str
    seed: int
    outcome: str
    said: str = ""

    @property
    def is_failure(self) -> bool:
        """Whether it should have ended otherwise."""
        return self.outcome not in ("detected", "harmless")


# Any bytes ----------------------------------------------------------------------------------------------------------


class Payload:
    """What runs code when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def _place(data: bytes, chance: random.Random, longest: int = 64) -> tuple[int, int]:
    start = chance.randrange(len(data))
    return start, min(len(data), start + chance.randint(1, longest))


def flip_bits(data: bytes, chance: random.Random) -> bytes:
    spoiled = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 50))):
        spoiled[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(spoiled)


def truncate(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.choice((0, 1, 8, len(data) - 1, chance.randrange(len(data))))]


def overwrite(data: bytes, chance: random.Random) -> bytes:
    start, end = _place(data, chance)
    return data[:start] + chance.choice((chance.randbytes(end - start), bytes(end - start))) + data[end:]


def insert(data: bytes, chance: random.Random) -> bytes:
    start, end = _place(data, chance)
    return data[:start] + chance.choice((chance.randbytes(end - start), data[start:end], b" ")) + data[start:]


def remove(data: bytes, chance: random.Random) -> bytes:
    start, end = _place(data, chance)
    return data[:start] + data[end:]


def move(data: bytes, chance: random.Random) -> bytes:
    """Swap two blocks, as a file system may that has lost its journal."""
    size = max(1, len(data) // 8)
    first, second = sorted(chance.sample(range(len(data) // size), 2))
    blocks = [data[i : i + size] for i in range(0, len(data), size)]
    blocks[first], blocks[second] = blocks[second], blocks[first]
    return b"".join(blocks)


def put_pickle(data: bytes, chance: random.Random) -> bytes:
    """A pickle instead of the file, before it, after it, or in a zip as PyTorch keeps it."""
    buffer = io.BytesIO()
    torch.save(Payload(MARK.absolute()), buffer)
    code = pickle.dumps(Payload(MARK.absolute()))
    return chance.choice((code, code + data, data + code, buffer.getvalue(), gzip.compress(code)))


RAW: tuple[Spoil, ...] = (flip_bits, truncate, overwrite, insert, remove, move, put_pickle)


# Contents -----------------------------------------------------------------------------------------------------------


def places(tree: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to every value in a tree of dicts and lists."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*above, key)
        yield from places(value, (*above, key))


def change(tree: Any, place: tuple[Any, ...], change_value: Callable[[Any], Any]) -> None:
    *above, last = place
    for key in above:
        tree = tree[key]
    tree[last] = change_value(tree[last])


def of_another_kind(value: Any, chance: random.Random) -> Any:
    kinds: list[Any] = ["<b>text</b>", -1, 10**400, math.nan, [], ["x"], {"x": 1}, None, True, [[[0]]]]
    return chance.choice([each for each in kinds if type(each) is not type(value)])


def shallow(tree: Any, chance: random.Random) -> tuple[Any, ...]:
    """A place, the upper ones as likely as all those below them: there are few, and all matter."""
    by_depth: dict[int, list[tuple[Any, ...]]] = {}
    for place in places(tree):
        by_depth.setdefault(len(place), []).append(place)
    return chance.choice(by_depth[chance.choice(list(by_depth))])


# Models -------------------------------------------------------------------------------------------------------------


def _header(data: bytes) -> tuple[dict[str, Any], bytes]:
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


def _with_header(header: dict[str, Any], body: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def declare_size(data: bytes, chance: random.Random) -> bytes:
    """A header far larger than the file, or a tensor."""
    huge = chance.choice((2**31, 2**62, 10**18))
    if chance.random() < 0.5:
        return huge.to_bytes(8, "little") + data[8:]
    header, body = _header(data)
    tensor = header[chance.choice([name for name in header if name != "__metadata__"])]
    tensor[chance.choice(("shape", "data_offsets"))] = [0, huge]
    return _with_header(header, body)


def swap_fields(data: bytes, chance: random.Random) -> bytes:
    header, body = _header(data)
    first, second = chance.sample([name for name in header if name != "__metadata__"], 2)
    names = chance.choice((("data_offsets",), ("dtype", "shape"), ("dtype", "shape", "data_offsets")))
    for name in names:
        header[first][name], header[second][name] = header[second][name], header[first][name]
    return _with_header(header, body)


def change_header(data: bytes, chance: random.Random) -> bytes:
    header, body = _header(data)
    change(header, shallow(header, chance), lambda value: of_another_kind(value, chance))
    return _with_header(header, body)


def _resummed(data: bytes, edit: Callable[[dict[str, Any]], None]) -> bytes:
    """The model with other contents and a checksum that fits them."""
    path = Path("edited.fsvi")
    path.write_bytes(data)
    tree = read_tree(path, "fsvi method")
    edit(tree)
    write_tree(path, tree, "fsvi method")
    return path.read_bytes()


def forge_setting(data: bytes, chance: random.Random) -> bytes:
    def edit(tree: dict[str, Any]) -> None:
        plain = {name: value for name, value in tree.items() if name != "tensors"}
        value = chance.choice(("text", -1, math.nan, [], ["x"], {"x": 1}, None, 10**400, {"class": "Uniform"}))
        change(tree, shallow(plain, chance), lambda _: value)

    return _resummed(data, edit)


def forge_tensor(data: bytes, chance: random.Random) -> bytes:
    """Weights that are no numbers, of another shape, of another name, or not there."""

    def edit(tree: dict[str, Any]) -> None:
        tensors = tree["tensors"]
        name = chance.choice(sorted(name for name, tensor in tensors.items() if tensor.numel()))
        tensor = tensors.pop(name)
        spoiled = tensor.clone()
        spoiled.view(-1)[chance.randrange(tensor.numel())] = chance.choice((math.nan, math.inf))
        choices = [{name: spoiled}, {name: tensor[None]}, {f"{name}x": tensor}, {}, {name: "text"}]
        tensors.update(chance.choice(choices))

    return _resummed(data, edit)


MODEL: tuple[Spoil, ...] = (*RAW, declare_size, swap_fields, change_header, forge_setting, forge_tensor)


# Results ------------------------------------------------------------------------------------------------------------


def _document(data: bytes, edit: Callable[[dict[str, Any]], None], resum: bool) -> bytes:
    document = json.loads(data)
    edit(document)
    if resum:
        document["sha256"] = checksum({name: value for name, value in document.items() if name != "sha256"})
    return json.dumps(document).encode()


def change_value(data: bytes, chance: random.Random) -> bytes:
    """A number, a text or anything else is another, and the checksum is the old one."""

    def edit(document: dict[str, Any]) -> None:
        change(document, shallow(document, chance), lambda value: of_another_kind(value, chance))

    return _document(data, edit, resum=False)


def forge_value(data: bytes, chance: random.Random) -> bytes:
    """The same, but with a checksum that fits."""

    def edit(document: dict[str, Any]) -> None:
        change(document, shallow(document, chance), lambda value: of_another_kind(value, chance))

    return _document(data, edit, resum=True)


def forge_field(data: bytes, chance: random.Random) -> bytes:
    """A field is missing, is new, or has another's contents."""

    def edit(document: dict[str, Any]) -> None:
        first, second = chance.sample(sorted(document), 2)
        kind = chance.randrange(3)
        if kind == 0:
            del document[first]
        elif kind == 1:
            document[first + "x"] = document[first]
        else:
            document[first], document[second] = document[second], document[first]

    return _document(data, edit, resum=chance.random() < 0.5)


def nest(data: bytes, chance: random.Random) -> bytes:
    """A value so deep in brackets that reading it exhausts the stack."""
    start = data.index(b": ", chance.randrange(len(data) // 4)) + 2
    return data[:start] + b"[" * 100_000 + data[start:]


RESULT: tuple[Spoil, ...] = (*RAW, change_value, forge_value, forge_value, forge_field, nest)


# Reading ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Whole:
    """A run's result and model before anything was spoiled, and what they say."""

    folder: Path
    result: Result
    samples: torch.Tensor
    diagnosis: str

    @property
    def result_file(self) -> Path:
        return result_path(self.folder, ORDER)

    @property
    def model_file(self) -> Path:
        return model_path(self.folder, self.result_file)

    @classmethod
    def make(cls, folder: Path) -> "Whole":
        result = run(ORDER, folder, lambda _: None, progress=False)
        path = result_path(folder, ORDER)
        return cls(
            folder, result, predictions(model_path(folder, path)), path.with_suffix(".diagnosis.json").read_text()
        )


def predictions(model: Path) -> torch.Tensor:
    return fsvi.load(model).predict(TASKS[ORDER.task].experiment(ORDER).data[0][:20], num_samples=5).samples


def read_model(whole: Whole) -> bool:
    """Whether the model predicts as before."""
    same = torch.equal(predictions(whole.model_file), whole.samples)
    return same and whole.result_file.with_suffix(".diagnosis.json").read_text() == whole.diagnosis


def read_everywhere(whole: Whole) -> bool:
    """Whether the result is as before to all who read it; the report leaves out what it cannot use."""
    told: list[str] = []
    write_report(whole.folder, whole.folder / "report", told.append)
    found = read_result(whole.result_file)
    same = (found.metrics, found.label, found.seed) == (whole.result.metrics, whole.result.label, whole.result.seed)
    if any(line.startswith("Left out") for line in told):
        raise fsvi.errors.FileFormatError(told[0])
    return same and whole.result_file.with_suffix(".diagnosis.json").read_text() == whole.diagnosis


def judge(read: Callable[[Whole], bool], whole: Whole, file: Path) -> tuple[str, str]:
    """What comes of reading when this file was spoiled, and the error."""
    try:
        return ("harmless", "") if read(whole) else ("unnoticed", "")
    except fsvi.errors.FSVIError as error:
        said = str(error)
        is_clear = said.endswith((".", "?")) and "\n" not in said and str(file) in said
        return ("detected" if is_clear else "unclear"), said
    except Exception as error:
        return "traceback", f"{type(error).__name__}: {error}"[:300]


def spoil(place: Path, whole: Whole, spoiler: Spoil, read: Callable[[Whole], bool], name: str, seed: int) -> Spoiled:
    """Spoil the file called `name` in a copy of the folder, and read it."""
    folder = place / "copy"
    shutil.copytree(whole.folder, folder)
    try:
        copy = Whole(folder, whole.result, whole.samples, whole.diagnosis)
        file = getattr(copy, name)
        chance = random.Random(f"{spoiler.__name__} {seed}")
        file.write_bytes(spoiler(file.read_bytes(), chance))
        outcome, said = judge(read, copy, file)
    finally:
        shutil.rmtree(folder)
    if MARK.exists():
        MARK.unlink()
        outcome = "code run"
    return Spoiled(spoiler.__name__, seed, outcome, said.replace(str(folder), "results"))


def spoil_models(place: Path, whole: Whole, times: int, seed: int) -> list[Spoiled]:
    """Spoil the model so many times, in every way in turn."""
    ways = [MODEL[i % len(MODEL)] for i in range(times)]
    return [spoil(place, whole, way, read_model, "model_file", seed + i) for i, way in enumerate(ways)]


def spoil_results(place: Path, whole: Whole, times: int, seed: int) -> list[Spoiled]:
    """Spoil the result so many times, in every way in turn."""
    ways = [RESULT[i % len(RESULT)] for i in range(times)]
    return [spoil(place, whole, way, read_everywhere, "result_file", seed + i) for i, way in enumerate(ways)]
