"""Pictures survive the way through a result file, and wrong ones are refused."""

import json

import numpy as np
import pytest

from paper.tasks.toy_predictions import Band, Curve, Surface, as_lists, from_lists


def pictures() -> list[Surface | Curve]:
    line = np.linspace(-1, 1, 5, dtype=np.float32)
    band = Band(line, line, abs(line), abs(line) + 1)
    grid = np.outer(line, line)
    return [Surface(np.ones((2, 2)), np.array([0, 1]), line, grid, grid), Curve(line, line, band, band)]


@pytest.mark.parametrize("picture", pictures(), ids=["surface", "curve"])
def test_pictures_come_back_from_json(picture):
    found = from_lists(json.loads(json.dumps(as_lists(picture))))
    assert type(found) is type(picture) and as_lists(found) == as_lists(picture)


@pytest.mark.parametrize("picture", pictures(), ids=["surface", "curve"])
@pytest.mark.parametrize("spoiled", [[0.0], [float("nan")] * 5, []])
def test_parts_that_do_not_fit_are_refused(picture, spoiled):
    lists = as_lists(picture)
    part = lists if "axis" in lists else lists["wide"]
    part["axis" if "axis" in part else "mean"] = spoiled
    with pytest.raises(ValueError, match="fit together"):
        from_lists(lists)
