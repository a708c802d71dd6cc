import pytest

import fsvi
from scenarios import classifier, points


class Terminal:
    """A stream that says it is a terminal."""

    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text
        return len(text)

    def flush(self):
        pass

    def isatty(self):
        return True


@pytest.mark.parametrize(("terminal", "ci", "shown"), [(True, "", True), (True, "true", False), (False, "", False)])
def test_the_bar_is_for_terminals_and_not_for_ci(monkeypatch, capsys, terminal, ci, shown):
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")
    stream = Terminal()
    if terminal:
        monkeypatch.setattr("sys.stderr", stream)
    fsvi.fit(classifier(), points(), epochs=3, validation=points())
    written = stream.text if terminal else capsys.readouterr().err
    assert capsys.readouterr().out == ""
    assert all((word in written) == shown for word in ("epoch", "3/3", "loss", "nll", "kl", "val", "0:00:0"))
    assert bool(written) == shown
