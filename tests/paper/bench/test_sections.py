"""A benchmark in sections: each is kept until it is measured again."""

import pytest

from fsvi.errors import InvalidInputError
from paper.bench.sections import run_sections
from paper.records import read_document


def constant(value):
    return lambda: {"value": value}


def test_sections_are_written_one_by_one_and_kept(tmp_path):
    path = tmp_path / "out" / "bench.json"
    run_sections(path, {"first": constant(1), "second": constant(2), "old": constant(0)}, None, quick=False)
    found = run_sections(path, {"first": constant(3), "second": constant(4)}, " second", quick=True)
    assert {name: section["value"] for name, section in found.items()} == {"first": 1, "second": 4}
    assert [found[name]["quick"] for name in ("first", "second")] == [False, True]
    assert read_document(path) == found


def test_a_section_that_fails_leaves_the_earlier_ones(tmp_path):
    def fail():
        raise RuntimeError("no memory")

    path, seen = tmp_path / "bench.json", []
    with pytest.raises(RuntimeError, match="no memory"):
        run_sections(path, {"first": constant(1), "second": fail}, None, quick=False, written=seen.append)
    assert list(read_document(path)) == ["first"] and seen == [read_document(path)]


def test_an_unknown_section_is_refused_before_anything_is_measured(tmp_path):
    with pytest.raises(InvalidInputError, match="did you mean 'first'"):
        run_sections(tmp_path / "bench.json", {"first": constant(1)}, "first,frist", quick=False)
    assert not (tmp_path / "bench.json").exists()
