"""Jobs in processes of their own."""

import os

import pytest
import torch

from fsvi.errors import FSVIError
from fsvi.experiments.runner.workers import each_finished


def job(number: int) -> tuple[int, int]:
    if number < 0:
        raise FSVIError(f"{number} is negative.")
    return number**2, torch.get_num_threads()


def test_every_job_has_its_result_or_its_error_and_one_thread():
    found = dict(each_finished(job, [2, -1], workers=4))
    assert found[2] == (4, 1)
    assert isinstance(found[-1], FSVIError) and "negative" in str(found[-1])


def test_a_process_that_dies_is_one_sentence():
    with pytest.raises(FSVIError, match="--workers 1"):
        list(each_finished(os._exit, [1], workers=2))
