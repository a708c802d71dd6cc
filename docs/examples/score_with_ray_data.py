"""Score a Parquet dataset with Ray Data, for pipelines that run on Ray anyway.

    python docs/examples/score_with_ray_data.py model.fsvi data/ scored/ --key id

Each actor loads the model once and scores batches. Needs `pip install 'ray[data]'` and a classifier of `fsvi fit` or
`FSVIClassifier.save`. Without Ray, `fsvi predict model.fsvi data/ --out scored/ --jobs 4` does the same.
"""

from __future__ import annotations

import argparse
from typing import Any

import pandas as pd
import ray.data
import torch

import fsvi
from fsvi.tables import as_table


class Scorer:
    """An actor with the model in memory."""

    def __init__(self, model: str, key: str) -> None:
        torch.set_num_threads(1)
        self.model, self.key = fsvi.FSVIClassifier.load(model), key

    def __call__(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Predictions of a batch."""
        p = self.model.predictive(as_table(rows))
        return pd.DataFrame(
            {
                self.key: rows[self.key].to_numpy(),
                "label": self.model.classes_[p.labels().numpy()],
                "probability": p.mean.amax(1).numpy(),
                "entropy": p.entropy().numpy(),
            }
        )


def score(model: str, inputs: str, out: str, key: str = "id", actors: int = 2) -> Any:
    """Write predictions of all rows, and return them as a dataset.

    Args:
        model: The model's file, which all machines must see.
        inputs: The Parquet dataset.
        out: The folder for predictions.
        key: The column that identifies rows.
        actors: The number of processes.
    """
    rows = ray.data.read_parquet(inputs)
    scored = rows.map_batches(
        Scorer,
        fn_constructor_args=(model, key),
        batch_format="pandas",
        batch_size=8_192,
        compute=ray.data.ActorPoolStrategy(size=actors),
    ).materialize()
    scored.write_parquet(out)
    return scored


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("model", "inputs", "out"):
        parser.add_argument(name)
    parser.add_argument("--key", default="id")
    parser.add_argument("--actors", type=int, default=2)
    given = parser.parse_args()
    print(f"{score(given.model, given.inputs, given.out, given.key, given.actors).count()} rows scored")
