"""Monte-Carlo dropout: where masks act, what they do to their input, and that a draw is a function."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

import fsvi
import scenarios
from conftest import HeadFirst, Transformer
from fsvi_cases import loss_of

X, Y = scenarios.points(32)


def stack(*between: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), *between, nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 2))


def method(net: nn.Module, **settings) -> fsvi.MCDropout:
    return fsvi.MCDropout(net, fsvi.Categorical(), **settings)


def inputs_of(layer: nn.Module, run) -> list[Tensor]:
    run()  # the first time, the network is looked at
    seen: list[Tensor] = []
    handle = layer.register_forward_hook(lambda _, args, out: seen.append(args[0].detach().clone()))
    run()
    handle.remove()
    return seen


class Shared(nn.Module):
    """One dropout layer in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(2, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(torch.ones_like(self.second(self.drop(torch.ones_like(self.first(x)))))))


class LengthFirst(nn.Module):
    """Dropout on a tensor whose first dimension is not the inputs'."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(x.transpose(0, 1)).mean(0))


# Limits --------------------------------------------------------------------------------------------------------------


def test_rate_zero_is_map_to_the_bit():
    net = stack()
    zero, point = method(net, rate=0), fsvi.MAP(net, fsvi.Categorical())
    histories = [fsvi.fit(each, (X, Y), epochs=4, batch_size=10) for each in (zero, point)]
    assert histories[0].terms == histories[1].terms
    assert all(torch.equal(p, point.state_dict()[name]) for name, p in zero.state_dict().items())
    assert torch.equal(zero.predict(X).log_probs, point.predict(X).log_probs)


def test_draws_have_the_variance_of_bernoulli_masks():
    rate, num = 0.3, 4000
    net = nn.Sequential(nn.Linear(2, 8), nn.Linear(8, 1)).double()
    draws = fsvi.MCDropout(net, fsvi.Gaussian(), rate=rate).predict(X[:3], num).samples.squeeze(-1)
    parts = net[0](X[:3].double()).detach() * net[1].weight.detach()
    variance = rate / (1 - rate) * parts.square().sum(1)
    mean = parts.sum(1) + net[1].bias.detach()
    fourth = parts.pow(4).sum(1) * (rate * (1 - rate) * (1 - 6 * rate * (1 - rate))) / (1 - rate) ** 4
    error_of_variance = ((fourth + 2 * variance**2) / num).sqrt()
    assert bool(((draws.mean(0) - mean).abs() < 5 * (variance / num).sqrt()).all())
    assert bool(((draws.var(0) - variance).abs() < 5 * error_of_variance).all())


# Where dropout acts --------------------------------------------------------------------------------------------------


def test_inserted_before_every_weight_layer_but_the_first():
    m = method(stack(), rate=0.5)
    dropped = [inputs_of(m.net[i], lambda: m.predict(X, 1))[0].eq(0).any().item() for i in (0, 2, 4)]
    assert dropped == [False, True, True]


def test_inserted_before_convolutions_too():
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(4, 2))
    m = method(net, rate=0.5)
    dropped = inputs_of(m.net[1], lambda: m.predict(torch.rand(3, 1, 5, 5) + 1, 1))[0].eq(0)
    assert dropped.any() and not dropped.all()
    assert torch.equal(dropped[0], dropped[2])


def test_the_first_layer_is_the_one_called_first():
    m = method(HeadFirst(), rate=0.5)
    x = torch.rand(4, 3) + 1
    assert not inputs_of(m.net.body, lambda: m.predict(x, 1))[0].eq(0).any()
    assert any(h.eq(0).any() for h in inputs_of(m.net.fc, lambda: m.predict(x, 20)))


def test_own_layers_are_used_at_their_own_rates():
    m = method(stack(nn.Dropout(0.5)), rate=0.1)
    kept = torch.stack([h.ne(0).float().mean() for h in inputs_of(m.net[3], lambda: m.predict(X, 400))]).mean()
    assert abs(kept - 0.5) < 5 * math.sqrt(0.25 / (400 * 8))
    assert not any(h.eq(0).any() for h in inputs_of(m.net[5], lambda: m.predict(X, 20)))


def test_switched_off_layers_do_not_count_as_own():
    m = method(stack(nn.Dropout(0.0)), rate=0.5)
    assert any(h.eq(0).any() for h in inputs_of(m.net[5], lambda: m.predict(X, 20)))


def test_names_are_those_of_the_network_and_the_network_stays_as_it_was():
    net = stack()
    before = copy.deepcopy(net.state_dict())
    m = method(net, rate=0.5)
    fsvi.fit(m, (X, Y), epochs=1)
    assert m.state_dict().keys() == fsvi.MAP(net, fsvi.Categorical()).state_dict().keys()
    assert all(torch.equal(p, before[name]) for name, p in net.state_dict().items())
    assert not any(module._forward_pre_hooks for module in m.net.modules())


# What a mask is ------------------------------------------------------------------------------------------------------


def test_masks_are_shared_by_inputs_and_scale_what_they_keep():
    m = method(stack(), rate=0.25)
    (dropped,) = inputs_of(m.net[4], lambda: m.predict(X, 1))
    assert torch.equal(dropped.eq(0).any(0), dropped.eq(0).all(0))
    plain = m.net[:2](X).detach()
    (before,) = inputs_of(m.net[2], lambda: m.predict(X, 1))
    kept = before.ne(0).all(0)
    torch.testing.assert_close(before[:, kept], plain[:, kept] / 0.75)


def test_masks_of_training_differ_between_examples():
    m = method(stack(), rate=0.5)
    (dropped,) = inputs_of(m.net[2], lambda: loss_of(m, X, Y))
    assert not torch.equal(dropped.eq(0).any(0), dropped.eq(0).all(0))


def test_in_eval_mode_the_loss_is_that_of_the_whole_network():
    net = stack()
    plain = fsvi.MAP(net, fsvi.Categorical(), prior_variance=None)
    assert torch.equal(method(net, rate=0.5).eval()(X, Y)["nll"], plain(X, Y)["nll"])


def test_whole_channels_are_dropped_where_the_layer_says_so():
    net = nn.Sequential(nn.Conv2d(1, 6, 3), nn.Dropout2d(0.5), nn.Conv2d(6, 2, 3), nn.Flatten(), nn.Linear(2, 2))
    m = method(net)
    zero = torch.stack([h.eq(0) for h in inputs_of(m.net[2], lambda: m.predict(torch.rand(2, 1, 5, 5), 20))])
    channels = zero.flatten(3)
    assert torch.equal(channels.any(3), channels.all(3))
    assert 0 < channels.float().mean() < 1


def test_alpha_dropout_keeps_its_own_values():
    rate, alpha = 0.4, -1.7580993408473766
    keep = 1 - rate
    scale = (keep + alpha**2 * keep * rate) ** -0.5
    shift = -scale * rate * alpha
    m = method(stack(nn.AlphaDropout(rate)).double())
    (h,) = inputs_of(m.net[3], lambda: m.predict(X, 1))
    plain = m.net[:2](X.double()).detach()
    is_kept = (h - (scale * plain + shift)).abs() < 1e-12
    is_dropped = (h - (scale * alpha + shift)).abs() < 1e-12
    assert bool((is_kept ^ is_dropped).all()) and is_kept.any() and is_dropped.any()


def test_each_use_of_a_layer_has_a_mask_of_its_own():
    m = method(Shared())
    first = inputs_of(m.net.second, lambda: m.predict(X, 30))
    second = inputs_of(m.net.head, lambda: m.predict(X, 30))
    assert not all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


# A draw is a function ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("net", [stack(), stack(nn.Dropout(0.5)), Shared()])
def test_draws_do_not_depend_on_the_batch(net):
    m = method(net)
    whole = m.predict(X, 5).log_probs
    for size in (1, 7, 31):
        torch.testing.assert_close(m.predict(X, 5, batch_size=size).log_probs, whole)
    torch.testing.assert_close(m.predict(X.flip(0), 5).log_probs.flip(1), whole)
    assert not torch.allclose(whole[0], whole[1])


def test_dropout_of_a_transformer_acts_in_prediction():
    m = method(Transformer(dropout=0.3))
    x = torch.randn(6, 4, 3)
    draws = m.predict(x, 4).log_probs
    assert not torch.allclose(draws[0], draws[1])
    torch.testing.assert_close(m.predict(x, 4, batch_size=2).log_probs, draws)


# Bad input -----------------------------------------------------------------------------------------------------------


def test_inputs_not_first():
    with pytest.raises(fsvi.errors.InvalidInputError, match=r"\(3, 4, 3\)"):
        method(LengthFirst()).predict(torch.randn(4, 3, 3))
