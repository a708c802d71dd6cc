import pytest
import torch
from torch import nn

from fsvi.networks.calls import averaging_statistics, dropping, evaluating


def test_evaluating_brings_each_layers_mode_back_even_after_an_error(make):
    net, _ = make("dropout")
    net[2].eval()
    modes = [module.training for module in net.modules()]
    with pytest.raises(KeyError), evaluating(net):
        assert not any(module.training for module in net.modules())
        raise KeyError
    assert [module.training for module in net.modules()] == modes


def test_statistics_become_the_average_over_the_batches_that_follow():
    net = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(0.5))
    batches = [torch.randn(8, 2) + shift for shift in (0, 4)]
    with averaging_statistics(net):
        outputs = [net(batch) for batch in batches]
    expected = torch.stack([batch.mean(0) for batch in batches]).mean(0)
    torch.testing.assert_close(net[0].running_mean, expected)
    assert all((output != 0).all() for output in outputs), "dropout is off"
    assert net[0].momentum == 0.1 and net[0].training


def test_frozen_layers_keep_their_statistics():
    net = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2))
    with averaging_statistics(net, [net[0]]):
        net(torch.randn(8, 2) + 3)
    assert torch.equal(net[0].running_mean, torch.zeros(2)) and not torch.equal(net[1].running_mean, torch.zeros(2))


def test_dropout_can_be_switched_on_in_eval_mode():
    net = nn.Sequential(nn.Dropout(0.5)).eval()
    with dropping(net):
        assert (net(torch.ones(100)) == 0).any()
    assert torch.equal(net(torch.ones(100)), torch.ones(100))
