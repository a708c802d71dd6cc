from pathlib import Path

import pytest


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder that FSVI_DATA names, and an empty cache beside it."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("FSVI_DATA", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def any_content(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files with a known hash load whatever they hold, so that tests can write small ones."""
    monkeypatch.setattr("paper.data.store.check_file", lambda path, file: "unverified")
