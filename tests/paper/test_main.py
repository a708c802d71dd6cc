"""`python -m paper`: what it prints and the code it exits with."""

import sys
from functools import partial

import pytest

from paper import __main__ as commands
from paper import bench, data
from paper.sweeps import SWEEPS, plan

pytestmark = pytest.mark.usefixtures("few_predictions")


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a command; returns its exit code and what it wrote to stdout and stderr."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["paper", *arguments])
        code = 0
        try:
            commands.main()
        except SystemExit as ended:
            code = ended.code or 0
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_the_help_of_reproduce_names_the_sweeps(run):
    code, out, _ = run("reproduce", "--help")
    assert code == 0 and [name for name in SWEEPS if name not in out] == []


def test_bench_measures_what_it_is_asked_for(run, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(bench, "run_bench", lambda *args, others: asked.append((*args, others)))
    assert run("bench", "--peers", "--only", "cnn", "--out", str(tmp_path))[0] == 0
    assert run("bench", "--quick", "--out", str(tmp_path))[0] == 0
    assert asked == [(tmp_path, False, ("cnn",), True), (tmp_path, True, (), False)]


def test_demo_writes_a_report(run, tmp_path, monkeypatch):
    monkeypatch.setattr("paper.sweeps.plan", partial(plan, methods=["mfvi"]))
    code, out, _ = run("demo", "--quick", "--jobs", "1", "--out", str(tmp_path))
    assert code == 0 and "4 results." in out.splitlines()[-1]
    page = (tmp_path / "report.html").read_text()
    assert "Networks that know what they do not know" in page and page.count("data:image/png") == 4


def test_runs_of_a_sweep_are_listed(run, tmp_path):
    code, out, _ = run("reproduce", "toy", "--methods", "mfvi", "--profile", "smoke", "--out", str(tmp_path), "--list")
    assert code == 0 and out.splitlines()[0] == "missing      two-moons mfvi, smoke, seed 0"
    assert out.splitlines()[-1] == "4 missing." and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("reproduce", "toy", "--jobs", "0"), 1, "jobs=0"),
        (("demo", "--jobs", "many"), 2, "--jobs"),
        (("dmo",), 2, "invalid choice"),
        (("run", "two-mons", "map"), 1, "did you mean 'two-moons'"),
        (("run", "two-moons", "map", "--precision", "int8"), 1, "precision='int8'"),
    ],
)
def test_bad_options_are_one_sentence(run, tmp_path, arguments, code, said):
    found, out, err = run(*arguments)
    assert (found, out) == (code, "") and said in err.splitlines()[-1]


def test_several_processes_of_torchrun_are_refused(run, monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    code, _, err = run("data", "list")
    assert code == 1 and "python -m paper is for one process, but torchrun has started 2" in err


def raising(error):
    def function(*args, **kwargs):
        raise error

    return function


def test_ctrl_c_is_130_and_faults_are_one_sentence(run, monkeypatch):
    monkeypatch.setattr(data, "available", raising(KeyboardInterrupt()))
    assert run("data", "list")[0] == 130
    monkeypatch.setattr(data, "available", raising(ZeroDivisionError("division by zero\nand more")))
    code, _, err = run("data", "list")
    assert code == 1 and err == "Error: ZeroDivisionError: division by zero (--debug)\n"
    with pytest.raises(ZeroDivisionError):
        run("data", "list", "--debug")


def test_a_run_prints_the_columns_of_its_tables(run, tmp_path):
    code, out, _ = run("run", "snelson", "map", "--profile", "smoke", "--out", str(tmp_path))
    assert code == 0 and (tmp_path / "snelson" / "map.smoke.0.json").exists()
    assert "RMSE: " in out and "log-likelihood: " in out


def test_datasets(run, tmp_path, monkeypatch):
    code, out, _ = run("data", "list")
    assert code == 0 and [row.split()[0] for row in out.splitlines()] == data.names()
    monkeypatch.setenv("FSVI_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "notmnist" / "t10k-images-idx3-ubyte.gz"
    path.parent.mkdir()
    path.write_bytes(b"spoiled")
    path.with_name("t10k-labels-idx1-ubyte.gz").write_bytes(b"spoiled")
    code, _, err = run("data", "verify", "notmnist")
    assert code == 1 and str(path) in err
