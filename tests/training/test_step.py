import copy
import math

import pytest
import torch
from torch import nn

import fsvi
from fsvi.functions.contexts import Context
from fsvi.training.step import LossScale, Stepper
from scenarios import copied, images, points, same_bits


class Fixed(Context):
    """The same points in each step."""

    def sample(self, num, batch):
        return torch.linspace(-2, 2, 2 * num, device=batch.device).reshape(num, 2)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))


def fixed_noise(monkeypatch):
    """The same noise in each draw."""

    def noise(self, generator=None):
        return torch.randn(self.mean.shape, generator=torch.Generator().manual_seed(5), dtype=self.mean.dtype)

    monkeypatch.setattr(fsvi.methods.mean_field.MeanField, "noise", noise)


METHODS = {
    "map": lambda: fsvi.MAP(net(), fsvi.Categorical()),
    "mfvi": lambda: fsvi.MFVI(net(), fsvi.Categorical()),
    "jvp": lambda: fsvi.FSVI(net(), fsvi.Categorical(), Fixed(), num_context=6, linearize="jvp"),
    "conditional": lambda: fsvi.FSVI(net(), fsvi.Categorical(), Fixed(), num_context=6, linearize="conditional"),
    "vogn": lambda: fsvi.VOGN(net(), fsvi.Categorical()),
    "duq": lambda: fsvi.DUQ(net(), fsvi.Categorical()),
    "ensemble": lambda: fsvi.Ensemble(one_member(), 2),
}


def one_member():
    seeds = iter(range(100))

    def make():
        torch.manual_seed(next(seeds))
        layers = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Dropout(0.0), nn.Linear(16, 2))
        return fsvi.MFVI(layers, fsvi.Categorical())

    return make


def ready(method, x, y, lr=0.05):
    method.begin(x, len(x))
    method.train()
    optimizer = method.own_optimizer(lr) or torch.optim.SGD(method.parameter_groups(lr))
    return optimizer


@pytest.mark.parametrize("name", METHODS)
def test_accumulating_four_minibatches_is_one_large_one(monkeypatch, name):
    fixed_noise(monkeypatch)
    x, y = points(128)
    torch.manual_seed(1)
    parts, whole = METHODS[name](), METHODS[name]()
    whole.load_tensors(copied(parts))
    if name == "vogn":  # its scale starts from the first minibatch that it sees
        for method in (parts, whole):
            method.scale.data.fill_(0.3)
    steppers = [Stepper(method, ready(method, x, y)) for method in (parts, whole)]
    quarters = [(*pair, None) for pair in zip(x.split(32), y.split(32), strict=True)]
    for _ in range(3):
        terms = steppers[0](quarters)
        expected = steppers[1]([(x, y, None)])
        assert terms == pytest.approx(expected, rel=1e-5)
    for one, other in zip(parts.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    for one, other in zip(parts.buffers(), whole.buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_minibatches_of_different_sizes_count_by_their_examples(monkeypatch):
    x, y = points(30)
    parts, whole = METHODS["map"](), METHODS["map"]()
    steppers = [Stepper(method, ready(method, x, y)) for method in (parts, whole)]
    steppers[0]([(x[:22], y[:22], None), (x[22:], y[22:], None)])
    steppers[1]([(x, y, None)])
    for one, other in zip(parts.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def moved_by(method, x, y, **options):
    before = torch.cat([p.detach().flatten().clone() for p in method.parameters()])
    terms = Stepper(method, ready(method, x, y, lr=1.0), **options)([(x, y, None)])
    return torch.cat([p.detach().flatten() for p in method.parameters()]) - before, terms


def test_clipping_scales_a_large_gradient_down_and_leaves_a_small_one():
    x, y = points(40)
    free, terms = moved_by(METHODS["map"](), x, y)
    norm = float(free.norm())
    clipped, same = moved_by(METHODS["map"](), x, y, clip_norm=norm / 3)
    assert float(clipped.norm()) == pytest.approx(norm / 3, rel=1e-4)
    torch.testing.assert_close(clipped, free / 3, rtol=1e-4, atol=1e-6)
    assert terms == same
    untouched, _ = moved_by(METHODS["map"](), x, y, clip_norm=norm * 3)
    assert torch.equal(untouched, free)


def test_members_of_an_ensemble_are_clipped_one_by_one():
    x, y = points(40)
    method = METHODS["ensemble"]()
    optimizer = ready(method, x, y, lr=1.0)
    Stepper(method, optimizer, clip_norm=0.01)([(x, y, None)])
    for member in method.members:
        norms = [float(p.grad.norm()) for p in member.parameters() if p.grad is not None]
        assert math.hypot(*norms) == pytest.approx(0.01, rel=1e-4)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("name", ["map", "mfvi", "jvp", "conditional", "ensemble"])
def test_mixed_precision_is_close_to_full_precision(name, precision):
    x, y = points(64)
    moves = []
    for chosen in (None, precision):
        torch.manual_seed(3)
        method = METHODS[name]()
        torch.manual_seed(4)
        move, terms = moved_by(method, x, y, precision=chosen)
        assert move.dtype == torch.float32 and move.isfinite().all()
        moves.append((move, terms))
    (move, terms), (half_move, half_terms) = moves
    assert half_terms != terms  # the precision takes effect
    assert half_terms == pytest.approx(terms, rel=0.05)
    assert float((half_move - move).norm() / move.norm()) < 0.05


def test_fp16_skips_a_step_that_overflows_and_halves_the_scale(monkeypatch):
    x, y = points(16)
    method = METHODS["map"]()
    stepper = Stepper(method, ready(method, x, y), precision="fp16")
    backward, calls = method.backward, []

    def overflow(x, y, scale):
        terms = backward(x, y, scale)
        calls.append(scale)
        if len(calls) == 1:
            next(method.parameters()).grad.fill_(math.inf)
        return terms

    monkeypatch.setattr(method, "backward", overflow)
    before = copied(method)
    stepper([(x, y, None)])
    assert same_bits(copied(method), before)
    stepper([(x, y, None)])
    assert not same_bits(copied(method), before)
    assert calls == [2.0**16, 2.0**15]
    assert stepper.state() == {"scale": 2.0**15, "good_steps": 1}


def test_an_overflow_without_any_scale_is_an_error():
    x, y = points(16)
    method = METHODS["map"]()
    stepper = Stepper(method, ready(method, x, y), precision="fp16")
    stepper.load_state({"scale": 1.0, "good_steps": 0})

    def overflow(terms, count):
        next(method.parameters()).grad.fill_(math.inf)
        return terms, count

    stepper.after_backward = overflow
    with pytest.raises(fsvi.NonFiniteLossError, match="gradient"):
        stepper([(x, y, None)])


def test_the_loss_scale_grows_after_many_good_steps():
    scale = LossScale()
    for _ in range(2_000):
        scale.success()
    assert (scale.value, scale.good_steps) == (2.0**17, 0)


def test_gradients_can_be_changed_after_the_backward_passes():
    x, y = points(16)
    method = METHODS["map"]()
    before = copied(method)

    def clear(terms, count):
        for p in method.parameters():
            p.grad.zero_()
        return terms, count

    Stepper(method, ready(method, x, y), after_backward=clear)([(x, y, None)])
    assert same_bits(copied(method), before)


def test_a_step_of_its_own_loop_is_the_step_of_fit():
    x, y = points(16)
    by_hand, by_fit = METHODS["conditional"](), METHODS["conditional"]()
    fsvi.fit(by_fit, (x, y), epochs=3, lr=0.1, schedule=None, optimizer="sgd", clip_norm=0.5, seed=0)
    torch.manual_seed(0)
    x, y = by_hand.check_batch(x, y)
    by_hand.begin(x, len(x))
    by_hand.fit_prior(x, y)
    by_hand.train()
    optimizer = torch.optim.SGD(by_hand.parameter_groups(0.1), momentum=0.9)
    for _ in range(3):
        fsvi.take_step(by_hand, optimizer, x, y, clip_norm=0.5)
    by_hand.finish(lambda: [(x, y)])
    assert same_bits(copied(by_hand.eval()), copied(by_fit))


@pytest.mark.parametrize(
    ("options", "keyword"),
    [({"clip_norm": 0.0}, "clip_norm"), ({"clip_norm": math.nan}, "clip_norm"), ({"precision": "bf61"}, "bf16")],
)
def test_bad_options_are_named(options, keyword):
    method = METHODS["map"]()
    with pytest.raises(fsvi.InvalidInputError, match=keyword):
        Stepper(method, torch.optim.SGD(method.parameters()), **options)


def test_statistics_are_restored_after_a_failed_accumulation():
    x, y = images(12)
    torch.manual_seed(0)
    method = fsvi.MAP(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(50), nn.Linear(50, 2)), fsvi.Categorical())
    optimizer = ready(method, x, y)
    before = copy.deepcopy(copied(method))
    x[-1] = math.nan
    with pytest.raises(fsvi.NonFiniteLossError):
        Stepper(method, optimizer)([(x[:6], y[:6], None), (x[6:], y[6:], None)])
    assert same_bits(copied(method), before)
