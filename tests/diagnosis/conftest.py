from collections.abc import Iterator

import pytest

import fsvi
from moons import moons_method, trained


@pytest.fixture(scope="session")
def healthy() -> tuple[fsvi.FSVI, fsvi.History]:
    method = moons_method()
    return method, trained(method, epochs=250)


@pytest.fixture
def spoiled(healthy: tuple[fsvi.FSVI, fsvi.History]) -> Iterator[fsvi.FSVI]:
    """The healthy method, whose deviations a test may change; they are restored afterward."""
    method, _ = healthy
    kept = method.posterior.log_std.detach().clone()
    yield method
    method.posterior.log_std.data.copy_(kept)
