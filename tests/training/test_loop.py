import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fsvi
from scenarios import build, classifier, copied, plain, points, same_bits


def validated_loss(method, data):
    x, y = data
    return float(method.predict(x, num_samples=16).log_prob(y).mean())


def test_steps_are_those_of_a_loop_written_out_by_hand():
    x, y = points()
    method, net = plain(), plain().net
    fsvi.fit(method, (x, y), epochs=7, lr=0.3, optimizer=torch.optim.SGD, schedule=None)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
    for _ in range(7):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    for name, p in net.named_parameters():
        torch.testing.assert_close(dict(method.net.named_parameters())[name], p, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["conditional", "learned_noise", "map_batch_norm"])
def test_validation_is_the_mean_log_likelihood_after_each_epoch(name):
    method, data = build(name)
    history = fsvi.fit(method, data, epochs=3, batch_size=8, lr=1e-2, validation=data)
    assert len(history.validation) == 3
    assert history.validation[-1] == pytest.approx(validated_loss(method, data), rel=1e-6)
    assert history.best_epoch == 1 + int(np.argmax(history.validation))


def test_missing_validation_targets_do_not_count():
    x, y = points(30)
    values = []
    for held_out in ((x[:20], y[:20]), (x, torch.where(torch.arange(30) < 20, y, -1))):
        torch.manual_seed(0)
        method = fsvi.MAP(fsvi.networks.mlp(2, (4,), 2), fsvi.Categorical(ignore_index=-1))
        values.append(fsvi.fit(method, (x, y), epochs=2, validation=held_out).validation)
    assert values[0] == pytest.approx(values[1])


def test_validation_targets_that_have_no_likelihood_are_said_to_be_those():
    (x, _), soft = points(20), torch.full((20, 2), 0.5)
    method = fsvi.MAP(fsvi.networks.mlp(2, (4,), 2), fsvi.Categorical())
    with pytest.raises(fsvi.errors.InvalidInputError, match="validation: targets are probabilities"):
        fsvi.fit(method, (x, soft), epochs=1, validation=(x, soft))


@pytest.mark.parametrize("name", ["conditional", "learned_noise", "map_batch_norm"])
def test_early_stopping_brings_the_best_parameters_back(name):
    method, (x, y) = build(name)
    held_out = (x[12:], 1 - y[12:])  # the better the fit, the worse these
    history = fsvi.fit(method, (x[:12], y[:12]), epochs=200, lr=3e-2, validation=held_out, patience=4)
    assert history.epochs == len(history.validation) == history.best_epoch + 4 < 200
    assert max(history.validation) == history.validation[history.best_epoch - 1]
    assert validated_loss(method, held_out) == pytest.approx(max(history.validation), rel=1e-6)
    assert max(history.validation) > history.validation[-1]


def test_history_is_the_terms_averaged_over_the_examples_seen():
    x, y = points()
    still = {"epochs": 2, "schedule": lambda done: 0.0}
    whole = plain(prior_variance=1.0)
    whole.num_data = 20
    terms = {name: value.item() for name, value in whole(x, y).items()}
    for data in ((x, y), DataLoader(TensorDataset(x, y), batch_size=8)):
        history = fsvi.fit(plain(prior_variance=1.0), data, batch_size=7, **still)
        assert history.terms.keys() == terms.keys()
        for name, value in terms.items():
            np.testing.assert_allclose(history.terms[name], [value] * 2, rtol=1e-5)
        np.testing.assert_allclose(history.loss, [sum(terms.values())] * 2, rtol=1e-5)
    dropping = DataLoader(TensorDataset(x, y), batch_size=8, drop_last=True)
    history = fsvi.fit(plain(prior_variance=1.0), dropping, **still)
    np.testing.assert_allclose(history.terms["nll"], [whole(x[:16], y[:16])["nll"].item()] * 2, rtol=1e-5)


def break_terms(monkeypatch, method, spoil, step):
    """From `step` on, `spoil` changes the terms; the state after each step before is recorded."""
    states, forward = [copied(method)], method.forward

    def spoiled(x, y):
        return spoil(forward(x, y)) if len(states) > step else forward(x, y)

    monkeypatch.setattr(method, "forward", spoiled)
    monkeypatch.setattr(method, "after_step", lambda: states.append(copied(method)))
    return states


@pytest.mark.parametrize("term", ["nll", "kl"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["conditional", "batch_norm"])
def test_a_non_finite_term_stops_training_before_the_step(monkeypatch, name, term, value):
    method, data = build(name)
    states = break_terms(monkeypatch, method, lambda terms: {**terms, term: terms[term] * value}, step=2)
    with pytest.raises(fsvi.errors.NonFiniteLossError, match=f"{term}.*{value}.*epoch 1.*0.001"):
        fsvi.fit(method, data, epochs=2, batch_size=4, lr=1e-3, schedule=None)
    assert len(states) == 3
    assert same_bits(copied(method), states[-1])
    assert not method.training


def test_a_non_finite_gradient_of_a_finite_loss_stops_it_too(monkeypatch):
    method = classifier()

    def spoil(terms):
        return {**terms, "kl": terms["kl"] + (0 * method.posterior.log_std).sqrt().sum()}

    states = break_terms(monkeypatch, method, spoil, step=1)
    with pytest.raises(fsvi.errors.NonFiniteLossError, match="gradient"):
        fsvi.fit(method, points(), epochs=2, batch_size=4)
    assert same_bits(copied(method), states[-1]) and len(states) == 2


# Missing targets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("kind", ["numbers", "labels"])
def test_batches_without_any_target_are_as_if_not_there(kind, accumulate):
    """Five points without a target, which fill a batch of the loader, change nothing."""
    x, y = points(25)
    targets = x[:, :1].sin() if kind == "numbers" else y
    targets[5:10] = math.nan if kind == "numbers" else -1
    likelihood = fsvi.Gaussian(0.5) if kind == "numbers" else fsvi.Categorical(ignore_index=-1)
    there = torch.cat([torch.arange(5), torch.arange(10, 25)])
    results = []
    for rows in (torch.arange(25), there):
        torch.manual_seed(0)
        method = fsvi.MAP(nn.Linear(2, targets.shape[-1] if kind == "numbers" else 2), likelihood)
        loader = DataLoader(TensorDataset(x[rows], targets[rows]), batch_size=5)
        history = fsvi.fit(method, loader, epochs=2, lr=0.1, schedule=None, accumulate=accumulate)
        results.append({"loss": history.loss, "num_data": method.num_data, **copied(method)})
    assert same_bits(*results)
