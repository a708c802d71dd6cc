import pytest
import torch
from torch import nn

import fsvi
from scenarios import classifier, points


def plain(prior_variance=None):
    """A network without any randomness of its own."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 2))
    return fsvi.MAP(net, fsvi.Categorical(), prior_variance=prior_variance)


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


def test_progress_is_shown_or_hidden_on_demand(monkeypatch, capsys):
    monkeypatch.setenv("CI", "true")
    fsvi.fit(plain(), points(), epochs=2, progress=True)
    assert "2/2" in capsys.readouterr().err
    stream = Terminal()
    monkeypatch.setenv("CI", "")
    monkeypatch.setattr("sys.stderr", stream)
    fsvi.fit(plain(), points(), epochs=2, progress=False)
    assert stream.text == ""
