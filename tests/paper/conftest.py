import pytest


@pytest.fixture
def few_predictions(monkeypatch):
    """Toy tasks are measured at few points."""
    monkeypatch.setattr("paper.tasks.toys._MEASURED", 13)
    monkeypatch.setattr("paper.tasks.toys._DRAWN", 7)
