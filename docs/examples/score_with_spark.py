"""Score a Parquet dataset with Spark's mapInPandas, where the data are on Spark anyway.

    spark-submit docs/examples/score_with_spark.py model.fsvi data/ scored/ --key id

Each task loads the model once and scores its part in batches. Needs a classifier of `fsvi fit` or
`FSVIClassifier.save`, and fsvi, pandas and pyarrow on every executor.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pandas as pd
from pyspark.sql import SparkSession


def score(spark: SparkSession, model: str, inputs: str, out: str, key: str = "id") -> int:
    """Write predictions of all rows, and return their number.

    Args:
        spark: The session.
        model: The model's file, which all executors must see.
        inputs: The Parquet dataset.
        out: The folder for predictions.
        key: The column that identifies rows.
    """

    def predict(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        import torch

        import fsvi
        from fsvi.tables import as_table

        torch.set_num_threads(1)
        estimator = fsvi.FSVIClassifier.load(model)
        for rows in batches:
            p = estimator.predictive(as_table(rows))
            yield pd.DataFrame(
                {
                    key: rows[key],
                    "label": estimator.classes_[p.labels().numpy()].astype(str),
                    "probability": p.mean.amax(1).numpy(),
                    "entropy": p.entropy().numpy(),
                }
            )

    frame = spark.read.parquet(inputs)
    kind = frame.schema[key].dataType.simpleString()
    schema = f"`{key}` {kind}, label string, probability double, entropy double"
    frame.mapInPandas(predict, schema).write.mode("overwrite").parquet(out)
    return spark.read.parquet(out).count()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("model", "inputs", "out"):
        parser.add_argument(name)
    parser.add_argument("--key", default="id")
    given = parser.parse_args()
    session = SparkSession.builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", 8_192).getOrCreate()
    print(f"{score(session, given.model, given.inputs, given.out, given.key)} rows scored")
