"""Models and tables that were damaged at random, and what becomes of those who read them.

Bytes are damaged as disks and transfers do it, and contents as somebody does it who knows the format and computes the
checksum anew. Pickles among them would leave a mark if anything unpickled them.
"""

import gzip
import io
import json
import math
import pickle
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import torch
from torch import nn

import fsvi
from fsvi.scoring.files import predict_file
from fsvi.scoring.scorers import ModelFile
from fsvi.serialization import read_tree, write_tree

MARK = Path("code-was-run")
Damage = Callable[[bytes, random.Random], bytes]


class Payload:
    """What runs code when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


# Any bytes ------------------------------------------------------------------------------------------------------------


def flip_bits(data: bytes, chance: random.Random) -> bytes:
    spoiled = bytearray(data)
    for _ in range(chance.randint(1, 8)):
        spoiled[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(spoiled)


def truncate(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data))]


def overwrite(data: bytes, chance: random.Random) -> bytes:
    start, size = chance.randrange(len(data)), chance.randint(1, 64)
    return data[:start] + chance.randbytes(size) + data[start + size :]


def insert(data: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(data))
    return data[:start] + chance.choice((chance.randbytes(64), data[:64], b'"', b"\x00" * 64, b"\xff")) + data[start:]


def remove(data: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(data))
    return data[:start] + data[start + chance.randint(1, 64) :]


def put_pickle(data: bytes, chance: random.Random) -> bytes:
    """A pickle instead of the file, before it, after it, or in a zip as PyTorch keeps it."""
    buffer = io.BytesIO()
    torch.save(Payload(MARK.absolute()), buffer)
    code = pickle.dumps(Payload(MARK.absolute()))
    return chance.choice((code, code + data, data + code, buffer.getvalue(), gzip.compress(code)))


RAW: tuple[Damage, ...] = (flip_bits, truncate, overwrite, insert, remove, put_pickle)


# Contents of models ---------------------------------------------------------------------------------------------------


def _header(data: bytes) -> tuple[dict[str, Any], bytes]:
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


def _with_header(header: dict[str, Any], body: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def declare_size(data: bytes, chance: random.Random) -> bytes:
    """A header, or a tensor, far larger than the file."""
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
    for name in chance.choice((("data_offsets",), ("dtype", "shape"), ("dtype", "shape", "data_offsets"))):
        header[first][name], header[second][name] = header[second][name], header[first][name]
    return _with_header(header, body)


def _places(tree: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inside = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in inside:
        yield (*above, key)
        yield from _places(value, (*above, key))


def forge_value(data: bytes, chance: random.Random) -> bytes:
    """Another value somewhere, with a checksum that fits; upper places as likely as all those below them."""
    path = Path("edited.fsvi")
    path.write_bytes(data)
    kind = next(kind for kind in ("fsvi method", "fsvi estimator") if kind.encode() in data)
    tree = read_tree(path, kind)
    by_depth: dict[int, list[tuple[Any, ...]]] = {}
    for place in _places(tree):
        by_depth.setdefault(len(place), []).append(place)
    *above, last = chance.choice(by_depth[chance.choice(list(by_depth))])
    inner = tree
    for key in above:
        inner = inner[key]
    found = inner[last]
    if isinstance(found, torch.Tensor) and found.numel() and chance.random() < 0.8:
        spoiled = found.clone()
        if found.is_floating_point():
            spoiled.view(-1)[chance.randrange(found.numel())] = chance.choice((math.nan, math.inf))
        inner[last] = chance.choice((spoiled, found[None], "text"))
    else:
        odd = ("text", "<U536870911", -1, 10**9, math.nan, [], ["x"] * 30_000, {"x": 1}, None, 10**400, {"class": "U"})
        inner[last] = chance.choice(odd)
    write_tree(path, tree, kind)
    return path.read_bytes()


MODEL: tuple[Damage, ...] = (*RAW, declare_size, swap_fields, forge_value, forge_value, forge_value)


# Reading them ---------------------------------------------------------------------------------------------------------


def whole_files(folder: Path) -> dict[str, Path]:
    """A method, an estimator, and tables for it."""
    torch.manual_seed(0)
    chance = np.random.default_rng(0)
    rows = {"size": chance.normal(size=80), "color": chance.choice(["red", "blue"], 80), "age": np.arange(80)}
    rows["y"] = np.where(rows["size"] > 0, "big", "small")
    table = pa.table(rows)
    paths = {name: folder / f"whole{name}" for name in (".csv", ".csv.gz", ".parquet", ".method", ".estimator")}
    pa.parquet.write_table(table, paths[".parquet"])
    pa.csv.write_csv(table, paths[".csv"])
    paths[".csv.gz"].write_bytes(gzip.compress(paths[".csv"].read_bytes()))
    x, labels = table.drop_columns("y").to_pandas(), rows["y"]
    fsvi.FSVIClassifier(epochs=2, num_samples=5, random_state=0).fit(x, labels).save(paths[".estimator"])
    method = fsvi.MFVI(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)), fsvi.Categorical())
    fsvi.fit(method, (torch.randn(16, 2), torch.arange(16) % 2), epochs=1, progress=False)
    method.save(paths[".method"])
    return paths


def outcome_of(read: Callable[[], bytes], before: bytes, path: Path) -> tuple[str, str]:
    """`refused` by one sentence that names the file, `same` as before, `other` values, or a failure and its error."""
    try:
        return ("same" if read() == before else "other"), ""
    except fsvi.errors.FSVIError as error:
        said = str(error)
        is_clear = said.endswith((".", "?")) and "\n" not in said and path.name in said
        return ("refused" if is_clear else "unclear"), said
    except Exception as error:
        return "traceback", f"{type(error).__name__}: {error}"[:300]


def damage(folder: Path, times: int, tables: bool) -> tuple[Counter[str], list[str]]:
    """How often each outcome was, and the failures.

    Args:
        folder: For files; it becomes the current folder of the process.
        times: The number of damaged files.
        tables: Whether to damage tables, not models.
    """
    whole = whole_files(folder)
    scorer = ModelFile(whole[".estimator"]).load()
    arrays = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))

    def read(path: Path, name: str) -> bytes:
        if name == ".method":
            return fsvi.load(path).predict(arrays, 3).samples.numpy().tobytes()
        model = ModelFile(path).load() if name == ".estimator" else scorer
        out = folder / "predictions.csv"
        predict_file(model, whole[".csv"] if name == ".estimator" else path, out, (), lambda _: None)
        return out.read_bytes()

    names = (".csv", ".csv.gz", ".parquet") if tables else (".method", ".estimator")
    ways = RAW if tables else MODEL
    counts: Counter[str] = Counter()
    failures = []
    before = {name: read(whole[name], name) for name in names}
    for seed in range(times):
        name, way, chance = names[seed % len(names)], ways[seed // len(names) % len(ways)], random.Random(seed)
        path = folder / f"damaged{name}"
        path.write_bytes(way(whole[name].read_bytes(), chance))
        outcome, said = outcome_of(lambda path=path, name=name: read(path, name), before[name], path)
        if MARK.exists():
            MARK.unlink()
            outcome = "code run"
        counts[outcome] += 1
        if outcome not in ("refused", "same", "other"):
            failures.append(f"{name} {way.__name__} {seed}: {outcome}: {said}")
    return counts, failures
