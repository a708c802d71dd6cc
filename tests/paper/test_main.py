"""`python -m paper`: what it prints and the code it exits with."""

import json
import sys

import pytest

import fsvi
from made_results import make_result
from paper import __main__ as commands
from paper import data, demo
from paper.experiment import Compute
from paper.runner import runs
from paper.sweeps import SWEEPS


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a command; returns its exit code and what it wrote to stdout and stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["paper", *arguments])
        with pytest.raises(SystemExit) as ended:
            commands.main()
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run


def test_the_help_of_reproduce_names_every_sweep(run):
    words = run("reproduce", "--help")[1].replace(",", " ").split()
    assert [name for name in SWEEPS if name not in words] == []


def test_bench_measures_what_it_is_asked_for(run, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("paper.bench.run_peer_bench", lambda *args: asked.append(("peers", *args)))
    monkeypatch.setattr("paper.bench.run_bench", lambda *args: asked.append(("steps", *args)))
    assert run("bench", "--peers", "--only", "cnn", "--out", str(tmp_path))[0] == 0
    assert run("bench", "--quick", "--only", "cnn", "--out", str(tmp_path))[0] == 0
    assert asked == [("peers", tmp_path, False, "cnn"), ("steps", tmp_path, True, None, "cnn")]


def test_an_error_is_one_sentence_without_colour(run, tmp_path):
    (tmp_path / "file").write_text("")
    code, out, err = run("demo", "--out", str(tmp_path / "file" / "demo"))
    assert (code, out) == (1, "")
    assert err.startswith("Error: ") and err.count("\n") == 1
    assert "\x1b" not in err


def test_demo_passes_its_options_on(run, monkeypatch, tmp_path):
    called = {}

    def run_demo(out, seed, quick, jobs, tell, compute):
        called.update(out=out, seed=seed, quick=quick, jobs=jobs, compute=compute)
        tell("a line")

    monkeypatch.setattr(demo, "run_demo", run_demo)
    code, out, _ = run("demo", "--out", str(tmp_path), "--seed", "3", "--quick", "--jobs", "2", "--device", "cpu")
    assert (code, out) == (0, "a line\n")
    assert called == {"out": tmp_path, "seed": 3, "quick": True, "jobs": 2, "compute": Compute("cpu")}


def test_runs_of_a_sweep_are_listed(run, tmp_path):
    arguments = ("reproduce", "toy", "--methods", "mfvi", "--profile", "smoke", "--out", str(tmp_path), "--list")
    code, out, _ = run(*arguments)
    assert code == 0 and out.splitlines()[0] == "missing      two-moons mfvi, smoke, seed 0"
    assert out.splitlines()[-1] == "4 missing." and not list(tmp_path.iterdir())
    shards = [json.loads(run(*arguments, "--json", "--shard", f"{index}/3")[1]) for index in (1, 2, 3)]
    assert sorted(each["task"] for shard in shards for each in shard) == ["oat1d", "snelson", "subspace", "two-moons"]


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--shard", "5/4"], 1, "shard='5/4'"),
        (["--jobs", "0"], 1, "jobs=0"),
        (["--backend", "lokki"], 1, "did you mean 'loky'"),
        (["--json"], 2, "--list"),
    ],
)
def test_bad_options_of_a_sweep_are_one_sentence(run, tmp_path, options, code, said):
    found, out, err = run("reproduce", "toy", "--out", str(tmp_path), *options)
    assert (found, out) == (code, "") and said in err.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_a_bad_value_is_refused(run):
    code, _, err = run("demo", "--seed", "many")
    assert code == 2
    assert "--seed" in err.splitlines()[-1] and "integer" in err.splitlines()[-1]


def raising(error):
    def run_demo(*args, **kwargs):
        raise error

    return run_demo


def test_ctrl_c_is_130(run, monkeypatch):
    monkeypatch.setattr(demo, "run_demo", raising(KeyboardInterrupt()))
    code, out, err = run("demo")
    assert (code, out) == (130, "") and "Traceback" not in err


def test_a_fault_of_ours_is_one_sentence_too(run, monkeypatch):
    monkeypatch.setattr(demo, "run_demo", raising(ZeroDivisionError("division by zero\nand more")))
    code, _, err = run("demo")
    assert code == 1 and err.count("\n") == 1
    assert err.startswith("Error: ") and "ZeroDivisionError: division by zero" in err and "and more" not in err
    assert "--debug" in err


def test_datasets_for_a_program(run):
    code, out, _ = run("data", "list", "--json")
    rows = json.loads(out)
    assert code == 0 and [row["name"] for row in rows] == list(data.names())
    assert set(rows[0]) == {"name", "description", "license", "where"}


def test_a_run_for_a_program(run, tmp_path):
    arguments = ("run", "snelson", "map", "--profile", "smoke", "--out", str(tmp_path), "--json")
    (code, out, _), (_, again, err) = run(*arguments), run(*arguments)
    told = json.loads(out)
    assert code == 0 and told == json.loads(again) and "already" in err
    assert json.loads((tmp_path / "snelson" / "map.smoke.0.json").read_text())["metrics"] == told["metrics"]
    assert told["result"] == str(tmp_path / "snelson" / "map.smoke.0.json")
    assert fsvi.load(told["model"]).predict([[0.0]]).mean.shape == (1, 1)


def test_a_run_prints_the_columns_of_its_table(run, tmp_path, monkeypatch):
    metrics = {"accuracy": 0.5, "auroc_entropy_mnist": 0.6, "auroc_own_mnist": 0.7, "brier": 0.8}
    result = make_result(metrics=metrics)
    monkeypatch.setattr(runs, "run", lambda *_, **__: result)
    code, out, _ = run("run", "fashion-mnist", "map", "--out", str(tmp_path))
    assert code == 0
    assert out == "map: Accuracy 50.00, AUROC MNIST 70.00\n"


def test_a_file_that_is_not_the_published_one_is_named_with_its_folder(run, tmp_path, monkeypatch):
    monkeypatch.setenv("FSVI_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "notmnist" / "t10k-images-idx3-ubyte.gz"
    path.parent.mkdir()
    path.write_bytes(b"spoiled")
    path.with_name("t10k-labels-idx1-ubyte.gz").write_bytes(b"spoiled")
    code, _, err = run("data", "verify", "notmnist")
    assert code == 1 and str(path) in err
