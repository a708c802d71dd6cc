"""A benchmark in sections, which can be measured one by one: all of it takes long on a quiet machine."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import fsvi
from fsvi.errors import FileFormatError
from fsvi.serialization import check_writable
from fsvi.validation import check_choice
from paper.records import read_document, write_document

Section = Callable[[], dict[str, Any]]
"""Measures a section, and returns plain values for a file."""


def run_sections(
    path: Path,
    sections: Mapping[str, Section],
    only: str | None,
    quick: bool,
    written: Callable[[dict[str, Any]], None] = lambda found: None,
) -> dict[str, Any]:
    """Measure sections, and write each to a JSON file as soon as it is measured.

    Args:
        path: The file. It keeps the sections of an earlier run that are not measured again.
        sections: All sections, by name.
        only: The names of the sections to measure, separated by commas; None measures all.
        quick: Whether sizes are small, which is written down.
        written: Called with the sections that the file has, after each that was measured.

    Returns:
        The sections that the file now has.
    """
    names = (
        list(sections) if only is None else [check_choice("only", name.strip(), sections) for name in only.split(",")]
    )
    check_writable(path.parent)
    found = _read(path)
    for name in names:
        started = time.perf_counter()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            measured = sections[name]()
        seconds = round(time.perf_counter() - started, 1)
        found[name] = {"machine": _machine(), "quick": quick, "seconds": seconds, **measured}
        found = {each: found[each] for each in sections if each in found}
        write_document(path, found)
        written(found)
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_document(path, "benchmark")
    except FileFormatError:
        return {}


def _machine() -> dict[str, Any]:
    return {
        "fsvi": fsvi.__version__,
        "torch": torch.__version__,
        "platform": platform.platform(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }
