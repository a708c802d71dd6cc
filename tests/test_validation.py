import math

import numpy as np
import pytest
import torch

from fsvi import validation
from fsvi.errors import InvalidInputError


@pytest.mark.parametrize("value", [0, -1, 1.0, "1", None, True, math.nan])
def test_a_count_is_a_whole_number_of_at_least_one(value):
    with pytest.raises(InvalidInputError, match="number"):
        validation.check_count("number", value)


def test_counts_and_seeds_become_python_integers():
    assert type(validation.check_count("n", np.int64(3))) is int
    assert validation.check_count("n", 0, least=0) == 0
    assert validation.check_seed(validation.LARGEST_SEED) == validation.LARGEST_SEED
    with pytest.raises(InvalidInputError, match="seed"):
        validation.check_seed(validation.LARGEST_SEED + 1)


@pytest.mark.parametrize("value", [0, -1, math.inf, math.nan, "1", None, True, 10**400, 1j])
def test_a_positive_number_is_finite_and_above_zero(value):
    with pytest.raises(InvalidInputError, match="rate"):
        validation.check_positive("rate", value)


def test_zero_is_allowed_on_request_and_a_fraction_stays_below_one():
    assert validation.check_positive("rate", 0, zero=True) == 0.0
    assert validation.check_fraction("part", 0.5) == 0.5
    for value in (1, -0.1):
        with pytest.raises(InvalidInputError, match="part"):
            validation.check_fraction("part", value)


def test_a_choice_suggests_the_closest_name():
    assert validation.check_choice("kind", "blur", ("blur", "fog")) == "blur"
    with pytest.raises(InvalidInputError, match="did you mean 'blur'"):
        validation.check_choice("kind", "Blurr", ("blur", "fog"))
    with pytest.raises(InvalidInputError, match="'fog'"):
        validation.check_choice("kind", 3, ("blur", "fog"))


def test_a_type_error_tells_a_class_from_its_objects():
    validation.check_type("x", 3, int, "a number")
    with pytest.raises(InvalidInputError, match="the class int"):
        validation.check_type("x", int, int, "a number")


@pytest.mark.parametrize("value", ["text", object(), [[1], [1, 2]]])
def test_what_is_not_a_tensor_is_named(value):
    with pytest.raises(InvalidInputError, match="targets"):
        validation.as_tensor("targets", value)


def test_inputs_get_the_networks_type_and_indices_keep_theirs():
    assert validation.check_inputs(np.zeros((2, 3)), torch.float32).dtype == torch.float32
    assert validation.check_inputs(torch.zeros(2, dtype=torch.int64), torch.float32).dtype == torch.int64


@pytest.mark.parametrize(
    ("x", "keyword"),
    [
        (torch.zeros(3), "dimension"),
        (torch.zeros(()), "dimension"),
        (torch.zeros(0, 3), "empty"),
        (torch.tensor([[1.0, math.nan], [math.inf, 0.0]]), "2 NaN"),
        (torch.tensor([[1e300]], dtype=torch.float64), "NaN or infinite"),
    ],
)
def test_inputs_that_cannot_be_used(x, keyword):
    with pytest.raises(InvalidInputError, match=keyword):
        validation.check_inputs(x, torch.float32)


def test_labels_become_int64_without_a_column():
    labels = validation.check_labels(torch.tensor([[0], [2]], dtype=torch.uint8), 3)
    assert labels.dtype == torch.int64 and labels.tolist() == [0, 2]


@pytest.mark.parametrize("y", [torch.tensor([0.0]), torch.tensor([True]), torch.zeros(2, 2).long(), torch.tensor([3])])
def test_labels_that_cannot_be_used(y):
    with pytest.raises(InvalidInputError, match="labels"):
        validation.check_labels(y, 3)


@pytest.mark.parametrize(
    ("error", "clause"),
    [(ValueError("bad size. Try again.\nmore"), "bad size"), (ValueError(), "ValueError"), (ValueError("a."), "a")],
)
def test_the_first_line_of_an_error_is_a_clause(error, clause):
    assert validation.first_line(error) == clause
