"""Every public name has an example in its docstring, and the examples run."""

import doctest

import pytest
import torch

import fsvi


@pytest.mark.parametrize("name", fsvi.__all__)
def test_the_example_of_a_name_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    finder = doctest.DocTestFinder(recurse=False)
    (example,) = finder.find(getattr(fsvi, name), name, globs={"fsvi": fsvi, "torch": torch})
    assert example.examples, f"fsvi.{name} has no example"
    report: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example, out=report.append)
    assert not report, "".join(report)
