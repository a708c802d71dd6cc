"""The command line: what it prints and the code it exits with."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import fsvi
from fsvi import cli
from fsvi.experiments import demo
from fsvi.experiments.experiment import Compute
from fsvi.experiments.runner import runs
from fsvi.experiments.sweeps import SWEEPS
from made_results import make_result


def test_help_is_one_screen(run):
    code, out, _ = run("--help")
    assert code == 0
    assert all(word in out for word in ("demo", "bench", "predict", "--version", "--debug", "--install-completion"))
    headings = [line for line in out.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings == ["Options:", "Try it:", "Train and measure:", "Use a model:", "Data:"]
    assert "130" in out and len(out.splitlines()) <= 40
    assert max(map(len, out.splitlines())) <= 80
    assert "\x1b" not in out


def test_every_command_is_documented():
    page = (Path(__file__).parents[2] / "docs" / "command_line.md").read_text()
    commands = typer.main.get_command(cli.app).commands
    assert len(commands) == 11
    assert [name for name in commands if f"`fsvi {name}`" not in page] == []


def test_the_help_of_reproduce_names_every_sweep(run):
    words = run("reproduce", "--help")[1].replace(",", " ").split()
    assert [name for name in SWEEPS if name not in words] == []


def test_bench_measures_what_it_is_asked_for(run, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("fsvi.experiments.bench.run_peer_bench", lambda *args: asked.append(("peers", *args)))
    monkeypatch.setattr("fsvi.experiments.bench.run_bench", lambda *args: asked.append(("steps", *args)))
    assert run("bench", "--peers", "--only", "cnn", "--out", str(tmp_path))[0] == 0
    assert run("bench", "--quick", "--only", "cnn", "--out", str(tmp_path))[0] == 0
    assert asked == [("peers", tmp_path, False, "cnn"), ("steps", tmp_path, True, None, "cnn")]


def test_version(run):
    assert run("--version") == (0, f"fsvi {fsvi.__version__}\n", "")


def test_the_package_runs_as_a_module():
    said = subprocess.run([sys.executable, "-m", "fsvi", "--version"], capture_output=True, text=True, check=True)
    assert said.stdout == f"fsvi {fsvi.__version__}\n"


def test_an_unknown_command_is_refused_with_a_suggestion(run):
    code, out, err = run("dmo")
    assert code == 2
    assert out == ""
    assert "No such command 'dmo'" in err and "demo" in err.splitlines()[-1]


def test_an_error_is_one_sentence_without_colour(run, tmp_path):
    (tmp_path / "file").write_text("")
    code, out, err = run("demo", "--out", str(tmp_path / "file" / "demo"))
    assert (code, out) == (1, "")
    assert err.startswith("Error: ") and err.count("\n") == 1
    assert "\x1b" not in err


@pytest.mark.parametrize("place", [0, 1, 3])
def test_debug_shows_the_traceback(monkeypatch, tmp_path, place):
    (tmp_path / "file").write_text("")
    arguments = ["demo", "--out", str(tmp_path / "file" / "demo")]
    arguments.insert(place, "--debug")
    monkeypatch.setattr(sys, "argv", ["fsvi", *arguments])
    with pytest.raises(fsvi.FSVIError, match="written"):
        cli.main()


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


@pytest.mark.parametrize(("no_colour", "coloured"), [("", True), ("1", False)])
def test_colours_are_for_those_who_want_them(monkeypatch, no_colour, coloured):
    said = {}
    monkeypatch.setattr(cli.app.__class__, "__call__", raising(fsvi.FSVIError("so")))
    monkeypatch.setattr("typer.secho", lambda text, fg, err: said.update(text=text, fg=fg, err=err))
    monkeypatch.setenv("NO_COLOR", no_colour)
    with pytest.raises(SystemExit):
        cli.main()
    assert said == {"text": "Error: so", "fg": "red" if coloured else None, "err": True}


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("fsvi pred", ["predict"]),
        ("fsvi run two-", ["two-moons"]),
        ("fsvi run two-moons fs", ["fs-eb", "fsvi"]),
        ("fsvi tune uci-y", ["uci-yacht"]),
        ("fsvi run two-moons map --profile sm", ["smoke"]),
        ("fsvi reproduce table", ["table1", "table2"]),
        ("fsvi data get fash", ["fashion-mnist"]),
        ("fsvi data verify fash", ["fashion-mnist"]),
    ],
)
def test_a_shell_completes_names(run, monkeypatch, words, offered):
    monkeypatch.setenv("_FSVI_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    code, out, _ = run()
    assert (code, out.split()) == (0, offered)


def test_datasets_for_a_program(run):
    code, out, _ = run("data", "list", "--json")
    rows = json.loads(out)
    assert code == 0 and [row["name"] for row in rows] == list(fsvi.data.names())
    assert set(rows[0]) == {"name", "description", "license", "where", "size"}


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


@pytest.mark.parametrize(("rank", "speaks"), [("0", True), ("1", False)])
def test_several_processes_can_only_share_a_run(run, monkeypatch, rank, speaks):
    variables = {"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    code, out, err = run("data", "list")
    assert code == 1
    assert out == ""
    assert ("2 processes" in err) == speaks
