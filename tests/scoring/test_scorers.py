import numpy as np
import polars
import pytest
import torch
from torch import nn

import fsvi
from fsvi.errors import FSVIError
from fsvi.scoring import scorers
from fsvi.scoring.scorers import ArrayScorer
from fsvi.tables.reading import read_array


@pytest.fixture(scope="module")
def method(tmp_path_factory):
    torch.manual_seed(0)
    method = fsvi.MAP(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(), fsvi.Categorical())
    x = torch.randn(20, 3).double()
    fsvi.fit(method, (x, (x[:, 0] > 0).long()), epochs=1, progress=False)
    path = tmp_path_factory.mktemp("method") / "m.fsvi"
    method.save(path)
    return method, path


def inputs(rows=50):
    return np.random.default_rng(0).normal(size=(rows, 3))


def save(path, x):
    frame = polars.DataFrame({"key": np.arange(len(x)), **{f"c{index}": x[:, index] for index in range(3)}})
    if path.suffix == ".npy":
        np.save(path, x)
    elif path.suffix == ".npz":
        np.savez_compressed(path, x=x)
    elif path.suffix == ".csv":
        frame.write_csv(path)
    else:
        frame.write_parquet(path)


@pytest.mark.parametrize("ending", [".npy", ".npz", ".csv", ".parquet"])
def test_methods_score_arrays_and_columns_of_numbers(method, tmp_path, ending):
    model, path = method
    keep = () if ending.startswith(".np") else ["key"]
    save(tmp_path / f"x{ending}", inputs())
    report = fsvi.predict_files(path, tmp_path / f"x{ending}", tmp_path / "out", keep=keep, tell=lambda _: None)
    assert report.rows == 50
    found = next((tmp_path / "out").glob("x.*"))
    frame = polars.read_parquet(found) if found.suffix == ".parquet" else polars.read_csv(found)
    largest = model.predict(torch.as_tensor(inputs())).mean.amax(1)
    np.testing.assert_allclose(frame["probability"], largest, rtol=1e-5)
    assert frame["row"].to_list() == list(range(1, 51))


def test_the_row_of_a_missing_number_is_named(method, tmp_path, monkeypatch):
    x = inputs(300)
    x[250, 1] = np.nan
    np.save(tmp_path / "x.npy", x)
    with pytest.raises(FSVIError, match="row 251"):
        fsvi.predict_files(method[1], tmp_path / "x.npy", tmp_path / "out", tell=lambda _: None)


@pytest.mark.parametrize("dtype", [">f4", "<i8", "bool", "longdouble"])
def test_arrays_are_read_in_parts(method, tmp_path, dtype, monkeypatch):
    x = np.arange(60).reshape(20, 3).astype(dtype)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", y=x[:1], x=x)
    np.save(tmp_path / "columns.npy", np.asfortranarray(x))
    monkeypatch.setattr(scorers, "ROWS", 7)
    for name in ("x.npy", "x.npz", "columns.npy"):
        read = ArrayScorer(method[0], 1).read(tmp_path / name, (), print)
        parts, rows = zip(*[(part, known["row"]) for part, known in read], strict=True)
        assert list(map(len, parts)) == [7, 7, 6] and np.concatenate(rows).tolist() == list(range(1, 21))
        np.testing.assert_array_equal(np.concatenate(parts), x.astype(float))


def test_a_compressed_array_that_is_too_large_is_refused_before_it_is_read(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros((10**6, 3)))
    monkeypatch.setattr("fsvi.tables.reading._MOST_CELLS", 10**6)
    with pytest.raises(FSVIError, match="more than 2 GiB"):
        read_array(tmp_path / "x.npz")


def test_fewer_rows_are_predicted_at_a_time_where_their_draws_are_many_numbers():
    model = fsvi.MAP(nn.Linear(3, 1000), fsvi.Categorical())
    assert ArrayScorer(model, 1).rows_at_once(3) == scorers.ROWS
    assert ArrayScorer(model, 100).rows_at_once(3) == 2**25 // 100_000


def test_embeddings_get_whole_numbers(tmp_path):
    net = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 2))
    model, ids = fsvi.MAP(net, fsvi.Categorical()), np.arange(6).reshape(2, 3)
    fsvi.fit(model, (torch.as_tensor(ids), torch.tensor([0, 1])), epochs=1, progress=False)
    np.save(tmp_path / "x.npy", ids.astype(np.float64))
    inputs, _ = next(ArrayScorer(model, 1).read(tmp_path / "x.npy", (), print))
    assert inputs.dtype == torch.int64 and inputs.tolist() == ids.tolist()
