import math

import pytest
import torch
from torch import nn

import fsvi
from fsvi.functions.contexts import Context
from fsvi.posteriors.mean_field import MeanField
from scenarios import copied, points, same_bits


class Fixed(Context):
    """The same points in each step."""

    def sample(self, num, batch):
        return torch.linspace(-2, 2, 2 * num, device=batch.device).reshape(num, 2)


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))


@pytest.fixture
def fixed_noise(monkeypatch):
    """The same noise in each draw."""

    def noise(self, generator=None):
        return torch.randn(self.log_std.shape, generator=torch.Generator().manual_seed(5), dtype=self.log_std.dtype)

    monkeypatch.setattr(MeanField, "noise", noise)


LABELS = fsvi.Categorical(ignore_index=-1)
METHODS = {
    "map": lambda: fsvi.MAP(net(), LABELS),
    "mfvi": lambda: fsvi.MFVI(net(), LABELS),
    "jvp": lambda: fsvi.FSVI(net(), LABELS, Fixed(), num_context=6, linearize="jvp"),
    "conditional": lambda: fsvi.FSVI(net(), LABELS, Fixed(), num_context=6, linearize="conditional"),
    "vogn": lambda: fsvi.VOGN(net(), LABELS),
    "duq": lambda: fsvi.DUQ(net(), fsvi.Categorical()),
    "ensemble": lambda: fsvi.Ensemble.of([fsvi.MFVI(net(seed), LABELS) for seed in range(2)]),
}


def stepper(method, lr=0.05, num=128, **options):
    x, y = points(num)
    method.check_batch(x, y)
    for learner in method.learners():
        learner.num_data = num
        learner.begin(x, y)
    method.train()
    groups = [group for learner in method.learners() for group in learner.parameter_groups(lr)]
    return fsvi.training.Stepper(method, method.own_optimizer(lr) or torch.optim.SGD(groups), **options)


def close(one, other):
    for found, wanted in zip((*one.parameters(), *one.buffers()), (*other.parameters(), *other.buffers()), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_accumulating_unequal_minibatches_is_one_large_one(fixed_noise, name):
    """Minibatches count by their numbers of observed targets, not by their rows."""
    x, y = points(128)
    if name != "duq":
        y[torch.arange(0, 60, 2)] = -1
    parts, whole = METHODS[name](), METHODS[name]()
    if name == "vogn":  # its scale starts from the first minibatch that it sees
        for method in (parts, whole):
            method.scale.data.fill_(0.3)
    steppers = [stepper(method) for method in (parts, whole)]
    pieces = list(zip(x.split([70, 38, 20]), y.split([70, 38, 20]), strict=True))
    for _ in range(3):
        assert steppers[0](pieces) == pytest.approx(steppers[1]([(x, y)]), rel=1e-5)
    close(parts, whole)


def moved_by(method, x, y, **options):
    before = torch.cat([p.detach().flatten().clone() for p in method.parameters()])
    terms = stepper(method, lr=1.0, **options)([(x, y)])
    return torch.cat([p.detach().flatten() for p in method.parameters()]) - before, terms


def test_clipping_scales_a_large_gradient_down_and_leaves_a_small_one():
    x, y = points(40)
    free, terms = moved_by(METHODS["map"](), x, y)
    norm = float(free.norm())
    clipped, same = moved_by(METHODS["map"](), x, y, clip_norm=norm / 3)
    torch.testing.assert_close(clipped, free / 3, rtol=1e-4, atol=1e-6)
    assert terms == same
    untouched, _ = moved_by(METHODS["map"](), x, y, clip_norm=norm * 3)
    assert torch.equal(untouched, free)


def test_members_of_an_ensemble_are_clipped_one_by_one():
    method = METHODS["ensemble"]()
    stepper(method, clip_norm=0.01)([points(40)])
    for member in method.members:
        norms = [float(p.grad.norm()) for p in member.parameters() if p.grad is not None]
        assert math.hypot(*norms) == pytest.approx(0.01, rel=1e-4)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("name", ["mfvi", "jvp", "conditional"])
def test_mixed_precision_is_close_to_full_precision(fixed_noise, name, precision):
    x, y = points(64)
    move, terms = moved_by(METHODS[name](), x, y)
    half_move, half_terms = moved_by(METHODS[name](), x, y, precision=precision)
    assert half_move.dtype == torch.float32 and half_move.isfinite().all()
    assert half_terms != terms  # the precision takes effect
    assert half_terms == pytest.approx(terms, rel=0.05)
    assert float((half_move - move).norm() / move.norm()) < 0.05


def test_fp16_skips_a_step_that_overflows_and_halves_the_scale():
    method = METHODS["map"]()
    step = stepper(method, precision="fp16")
    hook = method.net[0].weight.register_hook(lambda grad: grad * math.inf)
    before = copied(method)
    step([points(16)])
    assert same_bits(copied(method), before)
    assert step.scaler.get_scale() == 2.0**15
    hook.remove()
    step([points(16)])
    assert not same_bits(copied(method), before)
