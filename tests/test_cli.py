"""The command line: what it prints and the code it exits with."""

import sys

import pytest

import fsvi
from fsvi import cli
from fsvi.experiments import demo


@pytest.fixture
def run(monkeypatch, capsys):
    """`run("demo", "--quick")`: the exit code and what was printed."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fsvi", *arguments])
        with pytest.raises(SystemExit) as exit_info:
            cli.main()
        captured = capsys.readouterr()
        return exit_info.value.code or 0, captured.out, captured.err

    return call


def test_help_is_one_screen(run):
    code, out, _ = run("--help")
    assert code == 0
    assert all(word in out for word in ("demo", "bench", "--version", "--debug"))
    assert len(out.splitlines()) <= 24
    assert max(map(len, out.splitlines())) <= 80
    assert "\x1b" not in out


def test_version(run):
    assert run("--version") == (0, f"fsvi {fsvi.__version__}\n", "")


def test_an_unknown_command_is_refused_with_a_suggestion(run):
    code, out, err = run("dmo")
    assert code == 2
    assert out == ""
    assert "No such command 'dmo'" in err and "demo" in err.splitlines()[-1]


def test_an_error_is_one_sentence_without_colour(run, tmp_path):
    (tmp_path / "file").write_text("")
    code, out, err = run("demo", "--out", str(tmp_path / "file" / "demo"))
    assert (code, out) == (2, "")
    assert err.startswith("Error: ") and err.count("\n") == 1
    assert "\x1b" not in err


@pytest.mark.parametrize("place", [0, 1, 3])
def test_debug_shows_the_traceback(monkeypatch, tmp_path, place):
    (tmp_path / "file").write_text("")
    arguments = ["demo", "--out", str(tmp_path / "file" / "demo")]
    arguments.insert(place, "--debug")
    monkeypatch.setattr(sys, "argv", ["fsvi", *arguments])
    with pytest.raises(fsvi.FSVIError, match="cannot be written"):
        cli.main()


def test_demo_passes_its_options_on(run, monkeypatch, tmp_path):
    called = {}

    def run_demo(out, seed, quick, workers, tell):
        called.update(out=out, seed=seed, quick=quick, workers=workers)
        tell("a line")

    monkeypatch.setattr(demo, "run_demo", run_demo)
    code, out, _ = run("demo", "--out", str(tmp_path), "--seed", "3", "--quick", "--workers", "2")
    assert (code, out) == (0, "a line\n")
    assert called == {"out": tmp_path, "seed": 3, "quick": True, "workers": 2}


def test_a_bad_value_is_refused(run):
    code, _, err = run("demo", "--seed", "many")
    assert code == 2
    assert "--seed" in err.splitlines()[-1] and "integer" in err.splitlines()[-1]
