"""Errors can be caught as fsvi's own, or as the built-in error that they are."""

import inspect

import pytest

from fsvi import errors

CLASSES = [value for value in vars(errors).values() if inspect.isclass(value)]


@pytest.mark.parametrize("cls", [cls for cls in CLASSES if cls is not errors.FSVIError])
def test_every_error_is_a_built_in_one_too(cls):
    builtin = (ValueError, ArithmeticError, FileNotFoundError, RuntimeError)
    assert issubclass(cls, errors.FSVIError) and issubclass(cls, builtin) and cls.__doc__
