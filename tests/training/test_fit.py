import math
import random
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fsvi
from fsvi.methods import Method
from fsvi.training import optimizers
from fsvi.training.optimizers import check_optimizer, make_optimizer
from scenarios import FAST, SCENARIOS, box, build, classifier, copied, curve, dense, points, same_bits

OPTIMIZERS = [
    getattr(torch.optim, name)
    for name in ("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop")
] + [torch.optim.Rprop, torch.optim.SGD, "adam", "sgd", partial(torch.optim.SGD, momentum=0.5, nesterov=True)]


def plain(prior_variance=None):
    """A network without any randomness of its own."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 2))
    return fsvi.MAP(net, fsvi.Categorical(), prior_variance=prior_variance)


def validated_loss(method, data):
    x, y = data
    return float(method.predict(x, num_samples=16).log_prob(y).mean())


# What is learned


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_loss_falls(name):
    method, data = build(name)
    history = fsvi.fit(method, data, epochs=15, batch_size=8, lr=4e-2)
    assert history.epochs == len(history.loss) == 15
    assert np.mean(history.loss[-5:]) < np.mean(history.loss[:5]) - 0.1


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


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
def test_any_optimizer_trains_every_parameter(optimizer):
    method, data = build("learned_noise")
    before = copied(method)
    fsvi.fit(method, data, epochs=3, lr=1e-2, optimizer=optimizer)
    unchanged = {name for name, value in copied(method).items() if value.numel() and torch.equal(value, before[name])}
    assert unchanged == set()


def test_a_function_may_make_the_optimizer_and_gets_the_methods_groups():
    seen = []

    def make(groups):
        seen.extend(groups)
        return torch.optim.SGD(groups)

    method = classifier(log_std_lr_scale=4.0)
    fsvi.fit(method, points(), epochs=1, lr=0.1, optimizer=make, schedule=None)
    assert [group["lr"] for group in seen] == [0.1, 0.4]
    assert seen[1]["params"] == [method.posterior.log_std]


@pytest.mark.parametrize(
    ("schedule", "factor"),
    [
        ("cosine", lambda done: 0.05 + 0.95 * (1 + math.cos(math.pi * done)) / 2),
        (fsvi.cosine(final=0.5), lambda done: 0.5 + 0.5 * (1 + math.cos(math.pi * done)) / 2),
        (None, lambda done: 1.0),
        (lambda done: 1 - done, lambda done: 1 - done),
    ],
    ids=["cosine", "cosine(final)", "none", "function"],
)
def test_the_learning_rate_follows_the_schedule_step_by_step(schedule, factor):
    rates = []

    class Spy(torch.optim.SGD):
        def step(self, closure=None):
            rates.append([group["lr"] for group in self.param_groups])
            return super().step(closure)

    method = classifier(log_std_lr_scale=3.0)
    fsvi.fit(method, points(), epochs=2, batch_size=5, lr=0.1, optimizer=Spy, schedule=schedule)
    expected = [[0.1 * factor(step / 8), 0.3 * factor(step / 8)] for step in range(8)]
    np.testing.assert_allclose(rates, expected, rtol=1e-12)


# The same bits


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_seed_decides_every_bit(name):
    runs = []
    for seed in (1, 1, 2):
        method, data = build(name)
        torch.manual_seed(len(runs))
        history = fsvi.fit(method, data, epochs=3, batch_size=8, seed=seed)
        runs.append({"tensors": copied(method), "loss": history.loss, "terms": history.terms})
    assert same_bits(runs[0], runs[1])
    assert not same_bits(runs[0], runs[2])


def test_tensors_arrays_and_a_tensor_dataset_give_the_same_bits():
    x, y = points()
    runs = []
    for data in ((x, y), (x.numpy(), y.numpy()), TensorDataset(x, y), (x.double(), y.int()[:, None])):
        method = classifier()
        fsvi.fit(method, data, epochs=2, batch_size=8)
        runs.append(copied(method))
    assert all(same_bits(runs[0], run) for run in runs[1:])


def test_a_loader_without_a_generator_follows_the_seed():
    runs = []
    for seed in (1, 1, 2):
        method = plain()
        torch.manual_seed(len(runs))
        fsvi.fit(method, DataLoader(TensorDataset(*points()), batch_size=8, shuffle=True), epochs=2, seed=seed)
        runs.append(copied(method))
    assert same_bits(runs[0], runs[1])
    assert not same_bits(runs[0], runs[2])


def test_a_loader_with_its_own_generator_keeps_its_own_order():
    runs = []
    for seed, own in ((1, 5), (2, 5), (1, 6)):
        method = plain()
        generator = torch.Generator().manual_seed(own)
        loader = DataLoader(TensorDataset(*points()), batch_size=8, shuffle=True, generator=generator)
        fsvi.fit(method, loader, epochs=2, seed=seed)
        runs.append(copied(method))
    assert same_bits(runs[0], runs[1])
    assert not same_bits(runs[0], runs[2])


@pytest.mark.parametrize("bad", [False, True])
def test_global_random_states_are_left_as_they_were(bad):
    method, (x, y) = build("conditional")
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    if bad:
        with pytest.raises(fsvi.InvalidInputError):
            fsvi.fit(method, (x, y + 5), epochs=2)
    else:
        fsvi.fit(method, (x, y), epochs=2, batch_size=8, validation=TensorDataset(x, y))
    assert before[:2] == (random.getstate(), np.random.get_state()[1].tolist())
    assert torch.equal(before[2], torch.get_rng_state())


def test_the_network_and_the_data_given_are_not_changed():
    net, (x, y) = dense(), points()
    before = {name: p.clone() for name, p in net.state_dict().items()}, x.clone(), y.clone()
    fsvi.fit(fsvi.FSVI(net, fsvi.Categorical(), context=box()), (x, y), epochs=2, lr=0.1)
    assert same_bits(before[0], dict(net.state_dict()))
    assert torch.equal(x, before[1]) and torch.equal(y, before[2])


# History


def test_history_is_the_terms_averaged_over_the_examples_seen():
    x, y = points()
    still = {"epochs": 2, "schedule": lambda done: 0.0}
    whole = plain(prior_variance=1.0)
    whole.num_data = 20
    terms = {name: value.item() for name, value in whole.terms(x, y).items()}
    for data in ((x, y), DataLoader(TensorDataset(x, y), batch_size=8)):
        history = fsvi.fit(plain(prior_variance=1.0), data, batch_size=7, **still)
        assert history.terms.keys() == terms.keys()
        for name, value in terms.items():
            np.testing.assert_allclose(history.terms[name], [value] * 2, rtol=1e-5)
        np.testing.assert_allclose(history.loss, [sum(terms.values())] * 2, rtol=1e-5)
    dropping = DataLoader(TensorDataset(x, y), batch_size=8, drop_last=True)
    history = fsvi.fit(plain(prior_variance=1.0), dropping, **still)
    np.testing.assert_allclose(history.terms["nll"], [whole.terms(x[:16], y[:16])["nll"].item()] * 2, rtol=1e-5)


def test_a_method_is_told_how_much_data_there_is():
    method, loader = plain(), DataLoader(TensorDataset(*points(30)), batch_size=8, drop_last=True)
    fsvi.fit(method, loader, epochs=1)
    assert method.num_data == 30


# Validation


@pytest.mark.parametrize("name", SCENARIOS)
def test_validation_is_the_mean_log_likelihood_after_each_epoch(name):
    method, data = build(name)
    history = fsvi.fit(method, data, epochs=3, batch_size=8, lr=1e-2, validation=data)
    assert len(history.validation) == 3
    assert history.validation[-1] == validated_loss(method, data)
    assert history.best_epoch == 1 + int(np.argmax(history.validation))


@pytest.mark.parametrize("name", ["conditional", "learned_noise", "map_batch_norm"])
def test_early_stopping_brings_the_best_parameters_back(name):
    method, (x, y) = build(name)
    held_out = (x[12:], 1 - y[12:])  # the better the fit, the worse these
    history = fsvi.fit(method, (x[:12], y[:12]), epochs=200, lr=3e-2, validation=held_out, patience=4)
    assert history.epochs == len(history.validation) == history.best_epoch + 4 < 200
    assert max(history.validation) == history.validation[history.best_epoch - 1]
    assert validated_loss(method, held_out) == max(history.validation) > history.validation[-1]


def test_an_epoch_that_is_only_as_good_is_not_better():
    history = fsvi.fit(plain(), points(), epochs=50, schedule=lambda done: 0.0, validation=points(), patience=3)
    assert (history.best_epoch, history.epochs) == (1, 4)


def test_without_patience_the_last_parameters_stay():
    x, y = points()
    method = plain()
    history = fsvi.fit(method, (x, y), epochs=5, lr=0.1, validation=(x, 1 - y))
    assert history.best_epoch == 1
    assert validated_loss(method, (x, 1 - y)) == history.validation[-1] < history.validation[0]


@pytest.mark.parametrize(
    "wrap", [TensorDataset, lambda x, y: DataLoader(TensorDataset(x, y), batch_size=6, shuffle=True)]
)
def test_validation_data_may_come_in_any_form(wrap):
    histories = [fsvi.fit(classifier(), points(), epochs=2, validation=v) for v in (points(50), wrap(*points(50)))]
    np.testing.assert_allclose(histories[0].validation, histories[1].validation, rtol=1e-5)


def test_validation_does_not_change_what_is_learned():
    loader = DataLoader(TensorDataset(*points(50)), batch_size=6, shuffle=True)
    runs = []
    for validation in (None, points(50), loader):
        method = classifier()
        fsvi.fit(method, points(), epochs=3, batch_size=8, validation=validation)
        runs.append(copied(method))
    assert same_bits(runs[0], runs[1]) and same_bits(runs[0], runs[2])


# Where it must stop


def break_terms(monkeypatch, method, spoil, step):
    """From `step` on, `spoil` changes the terms; the state after each step before is recorded."""
    states, terms = [copied(method)], method.terms

    def spoiled(x, y):
        values = terms(x, y)
        return spoil(values) if len(states) > step else values

    monkeypatch.setattr(method, "terms", spoiled)
    monkeypatch.setattr(method, "backward", lambda x, y: Method.backward(method, x, y))  # FSVI's own takes no `terms`
    monkeypatch.setattr(method, "after_step", lambda: states.append(copied(method)))
    return states


@pytest.mark.parametrize("term", ["nll", "kl"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["conditional", "batch_norm"])
def test_a_non_finite_term_stops_training_before_the_step(monkeypatch, name, term, value):
    method, data = build(name)
    states = break_terms(monkeypatch, method, lambda terms: {**terms, term: terms[term] * value}, step=2)
    with pytest.raises(fsvi.NonFiniteLossError, match=f"{term}.*{value}.*epoch 1.*0.001"):
        fsvi.fit(method, data, epochs=2, batch_size=4, lr=1e-3, schedule=None)
    assert len(states) == 3
    assert same_bits(copied(method), states[-1])
    assert not method.training


def test_a_non_finite_gradient_of_a_finite_loss_stops_it_too(monkeypatch):
    method = classifier()

    def spoil(terms):
        return {**terms, "kl": terms["kl"] + (0 * method.posterior.log_std).sqrt().sum()}

    states = break_terms(monkeypatch, method, spoil, step=1)
    with pytest.raises(fsvi.NonFiniteLossError, match="gradient"):
        fsvi.fit(method, points(), epochs=2, batch_size=4)
    assert same_bits(copied(method), states[-1]) and len(states) == 2


def test_statistics_that_the_last_batch_spoiled_are_restored():
    x, y = points()
    net = nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    nn.init.constant_(net[0].weight, 10.0)
    x[-1] = 3e38
    method = fsvi.MAP(net, fsvi.Categorical())
    before = copied(method)
    with pytest.raises(fsvi.NonFiniteLossError, match="nll"):
        fsvi.fit(method, (x, y), epochs=2)
    assert same_bits(copied(method), before)


def test_a_validation_set_that_cannot_be_predicted_is_named(monkeypatch):
    method = plain()
    monkeypatch.setattr(method, "function_draws", lambda x, *_: torch.full((1, len(x), 2), math.nan))
    with pytest.raises(fsvi.NonFiniteLossError, match="validation"):
        fsvi.fit(method, points(), epochs=2, validation=points())


def test_ctrl_c_comes_through_and_leaves_a_method_that_predicts(monkeypatch):
    method = classifier()

    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(method, "after_step", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fsvi.fit(method, points(), epochs=2)
    assert not method.training
    assert bool(method.predict(points()[0]).mean.isfinite().all())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "adma"}, "optimizer='adma'.*did you mean 'adam'"),
        ({"optimizer": 3}, "optimizer=3"),
        ({"optimizer": torch.optim.LBFGS}, "LBFGS.*parameter groups"),
        ({"optimizer": lambda groups: torch.optim.LBFGS(groups[0]["params"])}, "LBFGS"),
        ({"optimizer": lambda groups: 3}, r"int.*torch\.optim\.Optimizer"),
        ({"schedule": "cosin"}, "schedule='cosin'.*did you mean 'cosine'"),
        ({"schedule": 3}, "schedule=3"),
        ({"schedule": lambda done: -1.0}, r"schedule\(0.0\)=-1.0"),
        ({"schedule": lambda done: "a"}, r"schedule\(0.0\)='a'"),
        ({"lr": 0.0}, "lr=0.0"),
        ({"lr": math.nan}, "lr=nan"),
        ({"epochs": 0}, "epochs=0"),
        ({"epochs": 1.5}, "epochs=1.5"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": None}, "seed=None"),
        ({"patience": 2}, "patience=2"),
        ({"patience": 0, "validation": points()}, "patience=0"),
        ({"validation": points()[0]}, "validation.*Tensor"),
        ({"validation": (points()[0], points()[1] + 1)}, r"validation.*1\.\.2"),
        ({"device": "cudaa"}, "device='cudaa'"),
        ({"resume": True}, "resume=True"),
    ],
)
def test_a_bad_argument_is_named_before_anything_happens(settings, message):
    method = classifier()
    before = copied(method)
    with pytest.raises(fsvi.InvalidInputError, match=message):
        fsvi.fit(method, points(), **{"epochs": 2, **settings})
    assert same_bits(copied(method), before)


def test_a_network_is_not_a_method():
    with pytest.raises(fsvi.InvalidInputError, match="Sequential"):
        fsvi.fit(dense(), points())


def test_named_optimizers_are_what_they_say():
    groups = [{"params": [nn.Parameter(torch.zeros(2))], "lr": 0.5}]
    made = make_optimizer(check_optimizer("sgd"), groups)
    assert isinstance(made, torch.optim.SGD) and made.param_groups[0]["momentum"] == 0.9
    assert isinstance(make_optimizer(check_optimizer("adam"), groups), torch.optim.Adam)
    assert set(optimizers._OPTIMIZERS) == {"adam", "sgd"}


# The progress bar


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


# Inputs of other kinds


def test_networks_of_tokens_train_on_integers():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(12, 2))
    tokens = torch.randint(0, 10, (20, 3))
    labels = (tokens[:, 0] > 4).long()
    method = fsvi.FSVI(net, fsvi.Categorical(), context=fsvi.contexts.Dataset(tokens), **FAST)
    history = fsvi.fit(method, (tokens, labels), epochs=60, lr=2e-2)
    assert np.mean(history.loss[-5:]) < np.mean(history.loss[:5]) - 0.1


def test_a_network_in_double_precision_stays_there():
    method = fsvi.FSVI(dense().double(), fsvi.Categorical(), context=box())
    fsvi.fit(method, points(), epochs=2)
    assert method.posterior.mean.dtype == method.predict(points()[0]).mean.dtype == torch.float64


def test_fitting_again_goes_on_from_what_was_learned():
    method, data = plain(), curve_labels()
    first = fsvi.fit(method, data, epochs=30, lr=1e-2)
    second = fsvi.fit(method, data, epochs=1, lr=1e-2)
    assert second.loss[0] == pytest.approx(first.loss[-1], abs=0.02) and second.loss[0] < first.loss[0] - 0.05


def curve_labels():
    x, y = curve()
    return x, (y[:, 0] > 0).long()
