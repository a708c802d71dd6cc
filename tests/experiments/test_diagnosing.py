import json

import pytest

from fsvi.errors import InvalidInputError
from fsvi.experiments.diagnosing import diagnose_result
from fsvi.experiments.experiment import Order
from fsvi.experiments.results import result_path
from fsvi.experiments.runs import model_path, run


@pytest.fixture
def path(tmp_path):
    order = Order("two-moons", "fsvi", "smoke")
    run(order, tmp_path, lambda _: None, progress=False)
    return result_path(tmp_path, order)


def test_a_run_that_learned_nothing_is_named(path):
    """Five epochs are none: the smoke profile only shows that everything works."""
    diagnosis = diagnose_result(path)
    assert diagnosis.faults and json.loads(diagnosis.to_json())


def test_a_model_that_is_gone_is_one_sentence(path):
    model_path(path.parent.parent, path).unlink()
    with pytest.raises(InvalidInputError, match="is not there: the model is kept where the run was made"):
        diagnose_result(path)
