"""The command line: what it prints and the code it exits with."""

import subprocess
import sys

import pytest

import fsvi
from fsvi import cli


def test_the_package_runs_as_a_module():
    said = subprocess.run([sys.executable, "-m", "fsvi", "--version"], capture_output=True, text=True, check=True)
    assert said.stdout == f"fsvi {fsvi.__version__}\n"


def test_help_is_one_screen_and_does_not_import_torch():
    code = "import sys; from fsvi.cli import main\ntry: main(['--help'])\nfinally: assert 'torch' not in sys.modules"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert all(f"    {name} " in said for name in ("fit", "predict", "export", "diagnose"))
    assert "130" in said and len(said.splitlines()) <= 24


def test_the_help_of_predict_says_what_its_columns_are(run):
    code, out, _ = run("predict", "--help")
    assert code == 0 and "lower and upper (95%) for real numbers" in out


def raising(error):
    def load(*args, **kwargs):
        raise error

    return load


def test_ctrl_c_is_130(run, monkeypatch):
    monkeypatch.setattr("fsvi.scoring.scorers.ModelFile.load", raising(KeyboardInterrupt()))
    assert run("predict", "model.fsvi", "x.npy")[0] == 130


def test_several_processes_of_torchrun_are_refused(run, monkeypatch):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    code, _, err = run("predict", "model.fsvi", "x.npy")
    assert code == 1 and "fsvi predict is for one process, but torchrun has started 2" in err


def test_an_error_is_one_sentence(run, tmp_path):
    code, out, err = run("predict", str(tmp_path / "absent.fsvi"), "x.npy")
    assert (code, out) == (1, "")
    assert err.startswith("Error: ") and err.count("\n") == 1


@pytest.mark.parametrize("place", [0, 1, 3])
def test_debug_shows_the_traceback(monkeypatch, tmp_path, place):
    arguments = ["predict", str(tmp_path / "absent.fsvi"), "x.npy"]
    arguments.insert(place, "--debug")
    monkeypatch.setattr(sys, "argv", ["fsvi", *arguments])
    with pytest.raises(fsvi.errors.FSVIError, match="absent"):
        cli.main()


def test_a_fault_of_ours_is_one_sentence_too(run, monkeypatch):
    error = ZeroDivisionError("division by zero\nand more")
    monkeypatch.setattr("fsvi.scoring.scorers.ModelFile.load", raising(error))
    code, _, err = run("predict", "model.fsvi", "x.npy")
    assert code == 1 and err.count("\n") == 1
    assert err.startswith("Error: ") and "ZeroDivisionError: division by zero" in err and "and more" not in err
    assert "--debug" in err
