"""`fsvi predict`: files in, a table out, and one sentence about everything that is wrong with them."""

import csv
import sys
import zipfile

import numpy as np
import polars
import pytest
import torch
from torch import nn

import fsvi
from scenarios import box, dense

NUM = 30


def pictures(num=NUM, seed=0):
    """Flat pictures of 2×3×3 pixels whose class is their brightness."""
    generator = np.random.default_rng(seed)
    y = generator.integers(0, 2, num)
    return (generator.normal(size=(num, 18)) + 3 * y[:, None]).astype(np.float32), y


class Own(nn.Module):
    """A network that a file does not describe."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x):
        return self.fc(torch.sin(x))


@pytest.fixture(scope="module")
def trained():
    """A classifier of pictures that has learned them."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    method = fsvi.FSVI(net, fsvi.Categorical(), fsvi.contexts.Monochrome(), stochastic="last_layer", num_context=4)
    x, y = pictures(200, seed=1)
    fsvi.fit(method, (x.reshape(-1, 2, 3, 3), y), epochs=20, batch_size=50, lr=1e-2)
    return method


@pytest.fixture
def files(tmp_path, monkeypatch, trained):
    """A folder to work in, with models, inputs and held-out data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    trained.save("model.fsvi")
    x, _ = pictures()
    x_val, y_val = pictures(300, seed=2)
    np.savez("val.npz", x=x_val, y=y_val)
    np.save("x.npy", x.reshape(-1, 2, 3, 3))
    np.savez("x.npz", x=x)
    names = [f"pixel{i}" for i in range(18)]
    np.savetxt("x.csv", x, delimiter=",", header=",".join(names), comments="", fmt="%.9g")
    np.savetxt("named.csv", x, delimiter=";", header=";".join(names), comments="", fmt="%.9g", encoding="utf-8-sig")
    polars.DataFrame(x, schema=names).write_parquet("x.parquet")
    return tmp_path


@pytest.fixture
def predict(files, run):
    """`predict("x.csv", "--out", "p.csv")`: the exit code and what was printed."""
    return lambda *arguments, model="model.fsvi": run("predict", model, *arguments)


def table(text):
    """The columns of a CSV."""
    lines = list(csv.reader(text.splitlines()))
    return dict(zip(lines[0], zip(*lines[1:], strict=True), strict=True))


CLASSES = ["label", "probability", "entropy", "mutual_information", "probability_0", "probability_1"]
REFER = ("--refer-for", "0.9", "--calibration", "val.npz")


# What comes out ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inputs", ["x.npy", "x.npz", "named.csv", "x.parquet"])
def test_every_kind_of_file_gives_the_methods_own_predictions(predict, trained, inputs):
    code, out, err = predict(inputs)
    p = trained.predict(pictures()[0].reshape(-1, 2, 3, 3))
    columns = table(out)
    assert (code, err) == (0, f"{NUM} predictions.\n")
    assert list(columns) == ["row", *CLASSES]
    assert list(map(int, columns["label"])) == p.labels().tolist()
    for name, values in (
        ("probability", p.mean.amax(-1)),
        ("probability_1", p.mean[:, 1]),
        ("entropy", p.entropy()),
        ("mutual_information", p.mutual_information()),
    ):
        assert np.array(columns[name], float) == pytest.approx(values.numpy(), rel=1e-4, abs=1e-6)


def test_referral_is_that_of_the_library(predict, trained):
    code, out, err = predict("x.csv", *REFER, "--confidence", "0.8")
    x_val, y_val = pictures(300, seed=2)
    referral = fsvi.Referral(trained.predict(x_val.reshape(-1, 2, 3, 3)), y_val, 0.9, 0.8)
    keep = referral.decide(trained.predict(pictures()[0].reshape(-1, 2, 3, 3)))
    assert code == 0
    assert table(out)["decision"] == tuple(np.where(keep, "keep", "refer"))
    kept = int(keep.sum())
    assert f"{kept} to keep, {NUM - kept} to refer" in err and err.endswith(f"{referral}\n")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_file_is_written_and_nothing_printed(predict, suffix):
    code, out, _ = predict("x.csv", *REFER, "--out", f"new/p.{suffix}")
    assert (code, out) == (0, "")
    path = f"new/p.{suffix}"
    if suffix == "parquet":
        frame = polars.read_parquet(path)
        assert frame.columns == ["row", *CLASSES, "decision"]
        assert len(frame) == NUM and set(frame["decision"]) <= {"keep", "refer"}
    else:
        with open(path) as file:
            assert file.read() == predict("x.csv", *REFER)[1]


@pytest.mark.parametrize("targets", [1, 2])
def test_real_numbers_have_a_mean_and_an_interval(predict, targets):
    method = fsvi.FSVI(dense(targets), fsvi.Gaussian(noise=0.3), context=box())
    method.save("real.fsvi")
    x = np.random.default_rng(0).normal(size=(5, 2))
    np.save("real.npy", x)
    code, out, _ = predict("real.npy", model="real.fsvi")
    p = method.predict(x)
    columns = {name: np.array(values, float) for name, values in table(out).items()}
    ends = [""] if targets == 1 else ["_0", "_1"]
    assert code == 0
    assert list(columns)[1:] == [name + end for end in ends for name in ("mean", "std", "lower", "upper")]
    for target, end in enumerate(ends):
        assert columns[f"mean{end}"] == pytest.approx(p.mean[:, target].numpy(), rel=1e-4, abs=1e-5)
        assert columns[f"std{end}"] == pytest.approx(p.variance[:, target].sqrt().numpy(), rel=1e-4)
        width = columns[f"upper{end}"] - columns[f"lower{end}"]
        assert width == pytest.approx(2 * 1.959964 * columns[f"std{end}"], rel=1e-4)
        assert columns[f"lower{end}"] + columns[f"upper{end}"] == pytest.approx(2 * columns[f"mean{end}"], abs=1e-4)


# Networks of one's own ------------------------------------------------------------------------------------------------


@pytest.fixture
def own(files, monkeypatch):
    fsvi.MAP(Own(), fsvi.Categorical()).save("own.fsvi")
    np.save("two.npy", np.ones((3, 2)))
    module = "import torch\nfrom test_cli_predict_nets import Own\n"
    monkeypatch.setitem(sys.modules, "test_cli_predict_nets", sys.modules[__name__])
    (files / "own_nets.py").write_text(module)
    yield
    sys.modules.pop("own_nets", None)


def test_a_network_of_ones_own_is_named(predict, own):
    before = list(sys.path)
    code, out, _ = predict("two.npy", "--net", "own_nets:Own", model="own.fsvi")
    assert code == 0 and len(out.splitlines()) == 4
    assert sys.path == before


# What goes wrong ------------------------------------------------------------------------------------------------------


def arrays():
    np.save("none.npy", np.zeros((0, 18)))
    np.save("inf.npy", np.full((2, 18), np.inf))
    np.save("wide.npy", np.zeros((2, 3, 3, 2)))
    np.savez("no_labels.npz", x=pictures()[0])
    with open("x.npy", "rb") as file, open("cut.npy", "wb") as cut:
        cut.write(file.read()[:200])
    for name, shape in (("huge", (10**13, 2)), ("negative", (-5, 18))):
        with open(f"{name}.npy", "wb") as file:
            header = {"descr": "<f8", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
        with zipfile.ZipFile(f"{name}.npz", "w") as archive:
            archive.write(f"{name}.npy", "x.npy")
    for name in ("bad.npy", "bad.parquet"):
        with open(name, "w") as file:
            file.write("no numbers")
    np.savetxt("numbers.csv", np.zeros((2, 18)), delimiter=",")
    with open("latin.csv", "wb") as file:
        file.write(b"gr\xf6\xdfe\n1\n")
    polars.DataFrame({f"c{i}": [1.0, None] for i in range(18)}).write_parquet("null.parquet")


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ("nowhere.csv", "No such file"),
        ("numbers.csv", "starts with numbers"),
        ("bad.npy", "cannot be read"),
        ("cut.npy", "cannot be read"),
        ("huge.npy", "greater than file size"),
        ("huge.npz", "cannot be read"),
        ("negative.npy", "must be positive"),
        ("negative.npz", "negative dimensions"),
        ("none.npy", "no rows"),
        ("inf.npy", "2 of 2 rows"),
        ("wide.npy", "(3, 3, 2)"),
        ("latin.csv", "UTF-8"),
        ("bad.parquet", "cannot be read"),
        ("null.parquet", "1 of 2 rows"),
    ],
)
def test_a_bad_file_is_one_sentence(predict, inputs, message):
    arrays()
    code, out, err = predict(inputs)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("Error: ") and message in err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--refer-for", "0.9"), 2, "--calibration"),
        (("--refer-for", "1.5", "--calibration", "val.npz"), 1, "--refer-for=1.5"),
        (("--refer-for", "0.9", "--calibration", "no_labels.npz"), 1, "'y'"),
        (("--out", "p.xlsx"), 1, "'.parquet'"),
        (("--samples", "0"), 1, "samples=0"),
    ],
)
def test_bad_options_are_named(predict, arguments, code, message):
    arrays()
    got, out, err = predict("x.csv", *arguments)
    assert (got, out) == (code, "") and message in err.splitlines()[-1]
    assert code == 2 or err.count("\n") == 1
