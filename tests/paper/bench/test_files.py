import numpy as np
import pytest

from fsvi.errors import InvalidInputError
from paper.bench.files import file_table


@pytest.fixture
def path(tmp_path):
    generator = np.random.default_rng(0)
    rows = [f"{generator.normal():.4f},{'red' if i % 3 else 'blue'},{'yes' if i % 2 else 'no'}" for i in range(60)]
    rows[5] = "1.0,red,maybe"
    rows[7] = "1.0,red"
    path = tmp_path / "own.csv"
    path.write_text("\n".join(["size,color,answer", *rows]) + "\n")
    return path


def test_a_file_becomes_numbers_and_targets(path):
    told = []
    table = file_table(f"{path}:answer", told.append)
    x, y = table.load()
    assert table.name == "own" and table.is_classification
    assert x.shape == (58, 3) and set(y) == {"yes", "no"}  # one row is malformed, one class occurs once
    assert any("line" in line for line in told) and any("'maybe'" in line for line in told)
    table = file_table(f"{path}:size", told.append)
    x, y = table.load()
    assert not table.is_classification and y.dtype == float and len(x) == len(y) == 59


@pytest.mark.parametrize("spec", ["own.csv", ":answer", "own.csv:"])
def test_a_file_without_a_target_is_refused(spec):
    with pytest.raises(InvalidInputError, match="target"):
        file_table(spec, print)


def test_a_missing_target_is_named(path):
    with pytest.raises(InvalidInputError, match="answer"):
        file_table(f"{path}:anser", print)
