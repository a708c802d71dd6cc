import math

import numpy as np
import pandas
import pytest
import torch

from fsvi import validation
from fsvi.errors import InvalidInputError


def test_counts_and_positive_numbers():
    for value in (0, -1, 1.0, "1", None, True, math.nan):
        with pytest.raises(InvalidInputError, match="number"):
            validation.check_count("number", value)
    for value in (0, -1, math.inf, math.nan, "1", None, True, 10**400, 1j, np.float32("inf")):
        with pytest.raises(InvalidInputError, match="rate"):
            validation.check_positive("rate", value)
    assert validation.check_positive("rate", np.float32(0.5)) == 0.5


def test_a_data_frame_becomes_a_tensor():
    rows = pandas.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    assert torch.equal(validation.as_tensor("x", rows), torch.tensor([[1.0, 3.0], [2.0, 4.0]]))


@pytest.mark.filterwarnings("ignore:.*nested tensors.*:UserWarning")
def test_tensors_that_are_not_dense_are_refused():
    rows = torch.eye(2)
    for odd in (rows.to("meta"), rows.to_sparse(), torch.nested.nested_tensor([rows[0], rows[1, :1]])):
        with pytest.raises(InvalidInputError, match=r"x is a tensor .*: give a dense tensor with values"):
            validation.as_tensor("x", odd)


def test_a_choice_suggests_the_closest_name():
    assert validation.check_choice("kind", "blur", ("blur", "fog")) == "blur"
    with pytest.raises(InvalidInputError, match="did you mean 'blur'"):
        validation.check_choice("kind", "Blurr", ("blur", "fog"))
    with pytest.raises(InvalidInputError, match="'fog'"):
        validation.check_choice("kind", 3, ("blur", "fog"))
