import torch

from fsvi.cost.metering import Meter


def test_meter_counts_what_is_alive() -> None:
    held = torch.zeros(10)
    with Meter([held]) as meter:
        a = torch.zeros(1000)
        b = a.view(10, 100)
        held.add_(1)
        c = b + 1
        del a, b
        d = torch.zeros(1)
    assert meter.held == 40
    assert meter.alive == [4000, 4000, 4000, 8000, 4004]
    assert meter.work == 1000 + 0 + 0 + 1000 + 1
    del c, d


def test_meter_counts_multiplications_of_both_passes() -> None:
    x, w = torch.randn(3, 5), torch.randn(5, 7, requires_grad=True)
    with Meter() as meter:
        y = x @ w
        y.backward(torch.ones(3, 7))
    assert 2 * 2 * 3 * 5 * 7 <= meter.work < 2 * 2 * 3 * 5 * 7 + 50


def test_restart_keeps_track_of_what_is_alive() -> None:
    with Meter() as meter:
        kept = torch.zeros(1000)
        meter.restart()
        more = torch.zeros(10)
    assert meter.alive == [4040] and meter.work == 10
    del kept, more
