"""Settings of the objects that a method is given: a search varies its prior's variance or its divergence's γ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from fsvi.errors import InvalidInputError
from fsvi.functions.priors import GaussianProcess
from fsvi.methods import Method
from fsvi.methods.search_space import GAMMA, VARIANCE
from fsvi.serialization import Configurable

_PARTS = {VARIANCE: ("prior", "variance"), GAMMA: ("divergence", "gamma")}
"""The names in a search: the method's argument, and the setting of the object that is passed for it."""


def part_values(method: Method) -> dict[str, Any]:
    """The settings of a method's parts by their names in a search.

    Left out are parts that cannot be rebuilt, the variance of a Gaussian process that is fitted to the targets, and
    names that are arguments of the method itself, such as the `prior_variance` of `FSEB`.

    Args:
        method: The method.
    """
    parts = {
        name: _settings_of(method, argument) for name, (argument, _) in _PARTS.items() if not hasattr(method, name)
    }
    return {name: own[_PARTS[name][1]] for name, own in parts.items() if _PARTS[name][1] in own}


def with_parts(method: Method, params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of a search as arguments of the method: its parts are rebuilt with the settings among them.

    Args:
        method: A method with the parts to change.
        params: The parameters by their names in a search.
    """
    varied = [name for name in part_values(method) if name in params]
    arguments = {name: value for name, value in params.items() if name not in varied}
    for name in varied:
        argument, setting = _PARTS[name]
        kind = type(getattr(method, argument))
        arguments[argument] = kind.from_settings({**_settings_of(method, argument), setting: params[name]})
    return arguments


def part_arguments(method: Method) -> set[str]:
    """The arguments of a method whose settings are searched.

    Args:
        method: The method.
    """
    return {_PARTS[name][0] for name in part_values(method)}


def settings_of(part: Configurable) -> dict[str, Any]:
    """The constructor arguments of a method or of its part; none if they cannot be serialized.

    Args:
        part: The method, its prior or its divergence.
    """
    try:
        return cast("dict[str, Any]", part.config()["settings"])
    except InvalidInputError:
        return {}


def _settings_of(method: Method, argument: str) -> dict[str, Any]:
    part = getattr(method, argument, None)
    is_fitted = isinstance(part, GaussianProcess) and part.learn
    if not isinstance(part, Configurable) or part.transient or is_fitted:
        return {}
    return settings_of(part)
