import importlib
import os
from pathlib import Path

import pooch
import pytest

from paper.data.store.files import Entry, File, Source
from paper.data.store.locations import cache, find, folders

FIRST = Source((File("a/x.gz"), File("a/y.gz")), lambda paths: None)
SECOND = Source((File("a/z"),), lambda paths: None)
ENTRY = Entry("a", "letters", "MIT", "https://example.org", {"test": (FIRST, SECOND)})


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_folders_are_searched_in_order(root, tmp_path, monkeypatch):
    monkeypatch.setenv("FSVI_DATA", f"{root}{os.pathsep}{tmp_path / 'more'}")
    assert folders(tmp_path / "own") == [tmp_path / "own", root, tmp_path / "more", cache()]


def test_the_cache_is_the_systems_unless_xdg_names_one(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache() == tmp_path / "fsvi"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache() == Path(pooch.os_cache("fsvi"))


def test_all_files_of_a_source_must_be_in_one_folder(root, tmp_path):
    touch(root / "a" / "x.gz", tmp_path / "own" / "a" / "y.gz")
    assert find(ENTRY, "test", tmp_path / "own") is None
    touch(root / "a" / "y")
    assert find(ENTRY, "test") == (FIRST, [root / "a" / "x.gz", root / "a" / "y"])


@pytest.mark.parametrize("own", [True, False])
def test_the_callers_folder_wins_over_a_better_source(root, tmp_path, own):
    touch(root / "a" / "x.gz", root / "a" / "y.gz")
    if own:
        touch(tmp_path / "own" / "a" / "z")
    found = find(ENTRY, "test", tmp_path / "own")
    assert found is not None and found[0] is (SECOND if own else FIRST)


def test_files_of_installed_packages_come_last(root, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path / "site")
    packaged = Source((File("b/t.csv", package="made-up-texts", installed="made_up_texts/data/t.csv"),), lambda _: None)
    entry = Entry("b", "texts", "MIT", "https://example.org", {"train": (packaged, SECOND)})
    assert find(entry, "train") is None
    touch(tmp_path / "site" / "made_up_texts" / "__init__.py")
    importlib.invalidate_caches()
    assert find(entry, "train") is None
    touch(tmp_path / "site" / "made_up_texts" / "data" / "t.csv")
    assert find(entry, "train") == (packaged, [tmp_path / "site" / "made_up_texts" / "data" / "t.csv"])
    touch(root / "a" / "z")
    assert find(entry, "train") == (SECOND, [root / "a" / "z"])
