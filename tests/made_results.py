"""Results of runs that never were."""

from typing import Any

from paper.records import Result


def make_result(method: str = "map", context: str | None = None, seed: int = 0, **changes: Any) -> Result:
    """A result on FashionMNIST by the paper's protocol, but for what `changes` say."""
    values: dict[str, Any] = {
        "task": "fashion-mnist",
        "profile": "paper",
        "settings": {"fit": {"epochs": 30}},
        "metrics": {"accuracy": 0.92, "ece_15": 0.02},
        "curves": {},
        "history": {},
        "data": [{"name": "fashion-mnist", "split": "train", "size": 60000, "sha256": "ab"}],
        "notes": [],
        "seconds": {"train": 100.0, "evaluate": 20.0},
        "versions": {"fsvi": "0.1.0", "torch": "2.9.0"},
        "machine": {"system": "Linux", "processor": "x86_64", "cores": 2},
        "commit": None,
    }
    return Result(method=method, context=context, seed=seed, **{**values, **changes})
