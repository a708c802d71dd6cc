"""What a result depends on besides its settings: versions, machine, and source."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import fsvi

_PACKAGES = ("torch", "numpy", "scikit-learn", "matplotlib")


def versions() -> dict[str, str]:
    """The versions of fsvi, Python and the packages that compute."""
    return {
        "fsvi": fsvi.__version__,
        "python": platform.python_version(),
        **{name: version(name) for name in _PACKAGES},
    }


def machine() -> dict[str, Any]:
    """The kind of machine, without anything that identifies it."""
    return {"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count()}


def commit() -> str | None:
    """The commit of fsvi's source, with `+changes` if files differ from it; None outside its repository."""
    folder = Path(fsvi.__file__).parent
    try:
        _git(folder, "ls-files", "--error-unmatch", "__init__.py")  # fails in a repository that only surrounds fsvi
        head = _git(folder, "rev-parse", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--", ".")
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+changes" if changed else "")


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()
