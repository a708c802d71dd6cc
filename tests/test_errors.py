"""Errors can be caught as fsvi's own, or as the built-in error that they are."""

import inspect

import pytest

import fsvi
from fsvi import errors

CLASSES = [value for value in vars(errors).values() if inspect.isclass(value)]


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_is_exported_and_documented(cls):
    assert getattr(fsvi, cls.__name__) is cls and cls.__name__ in fsvi.__all__ and cls.__doc__


@pytest.mark.parametrize("cls", [cls for cls in CLASSES if cls is not errors.FSVIError])
def test_every_error_is_a_built_in_one_too(cls):
    builtin = (ValueError, ArithmeticError, FileNotFoundError, RuntimeError)
    assert issubclass(cls, errors.FSVIError) and issubclass(cls, builtin)
