"""The command line: what it prints and the code it exits with."""

import subprocess
import sys

import pytest

import fsvi
from fsvi import cli


def test_version(run):
    assert run("--version") == (0, f"fsvi {fsvi.__version__}\n", "")


def test_the_package_runs_as_a_module():
    said = subprocess.run([sys.executable, "-m", "fsvi", "--version"], capture_output=True, text=True, check=True)
    assert said.stdout == f"fsvi {fsvi.__version__}\n"


def test_an_unknown_command_is_refused_with_a_suggestion(run):
    code, out, err = run("predct")
    assert code == 2
    assert out == ""
    assert "No such command 'predct'" in err and "predict" in err.splitlines()[-1]


def raising(error):
    def run_demo(*args, **kwargs):
        raise error

    return run_demo


@pytest.mark.parametrize(("no_colour", "coloured"), [("", True), ("1", False)])
def test_colours_are_for_those_who_want_them(monkeypatch, no_colour, coloured):
    said = {}
    monkeypatch.setattr(cli.app.__class__, "__call__", raising(fsvi.FSVIError("so")))
    monkeypatch.setattr("typer.secho", lambda text, fg, err: said.update(text=text, fg=fg, err=err))
    monkeypatch.setenv("NO_COLOR", no_colour)
    with pytest.raises(SystemExit):
        cli.main()
    assert said == {"text": "Error: so", "fg": "red" if coloured else None, "err": True}


@pytest.mark.parametrize(("words", "offered"), [("fsvi pred", ["predict"])])
def test_a_shell_completes_names(run, monkeypatch, words, offered):
    monkeypatch.setenv("_FSVI_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    code, out, _ = run()
    assert (code, out.split()) == (0, offered)


def test_an_error_is_one_sentence_without_colour(run, tmp_path):
    code, out, err = run("predict", str(tmp_path / "absent.fsvi"), "x.npy")
    assert (code, out) == (1, "")
    assert err.startswith("Error: ") and err.count("\n") == 1
    assert "\x1b" not in err


@pytest.mark.parametrize("place", [0, 1, 3])
def test_debug_shows_the_traceback(monkeypatch, tmp_path, place):
    arguments = ["predict", str(tmp_path / "absent.fsvi"), "x.npy"]
    arguments.insert(place, "--debug")
    monkeypatch.setattr(sys, "argv", ["fsvi", *arguments])
    with pytest.raises(fsvi.FSVIError, match="absent"):
        cli.main()


def test_a_fault_of_ours_is_one_sentence_too(run, monkeypatch):
    monkeypatch.setattr(
        sys.modules["fsvi.cli.app"], "file_kind", raising(ZeroDivisionError("division by zero\nand more"))
    )
    code, _, err = run("predict", "model.fsvi", "x.npy")
    assert code == 1 and err.count("\n") == 1
    assert err.startswith("Error: ") and "ZeroDivisionError: division by zero" in err and "and more" not in err
    assert "--debug" in err
