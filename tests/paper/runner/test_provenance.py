import subprocess
from shutil import rmtree, which

import pytest

import fsvi
from paper.runner.provenance import commit

pytestmark = pytest.mark.skipif(which("git") is None, reason="git is not installed")


def git(folder, *arguments):
    named = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    return subprocess.run(["git", *named, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A committed copy of the package's layout that stands for it."""
    folder = tmp_path / "src" / "fsvi"
    for path in (folder / "__init__.py", folder / "methods" / "fsvi.py", tmp_path / "docs" / "index.md"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("as committed\n")
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "all")
    monkeypatch.setattr(fsvi, "__file__", str(folder / "__init__.py"))
    return folder


def test_the_commit_of_unchanged_source(package):
    assert commit() == git(package, "rev-parse", "HEAD").strip()


@pytest.mark.parametrize("name", ["methods/fsvi.py", "new.py"])
def test_changes_anywhere_in_the_package_are_told(package, name):
    (package / name).write_text("changed\n")
    assert commit() == git(package, "rev-parse", "HEAD").strip() + "+changes"


def test_changes_outside_the_package_are_not(package):
    (package.parents[1] / "docs" / "index.md").write_text("changed\n")
    assert "+" not in commit()


def test_there_is_none_outside_a_repository_or_in_somebody_elses(package):
    git(package, "rm", "--cached", "__init__.py")
    assert commit() is None
    rmtree(package.parents[1] / ".git")
    assert commit() is None
