from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.func import functional_call, jvp
from torch.nn.utils.parametrizations import orthogonal
from torch.utils.checkpoint import checkpoint

from fsvi.functions import linearize
from fsvi.functions.forward_mode import Dual, plain_kernels
from fsvi.functions.linearize import features_jvp
from fsvi.networks import cnn, resnet18, text_encoder
from fsvi.networks.modes import evaluating
from fsvi.networks.network import Network


def hooked():
    layer = nn.Linear(3, 4)
    layer.register_forward_hook(lambda module, args, out: out.sin())
    return nn.Sequential(layer, nn.Linear(4, 2))


def hooked_head():
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    net[1].register_forward_pre_hook(lambda module, args: (args[0].sin(),))
    return net


def shared():
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Linear(3, 2))
    net[2].weight = net[0].weight
    return net


def twice():
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.ReLU(), nn.Linear(3, 2))


def frozen(*names):
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    for name in names:
        net.get_parameter(name).requires_grad_(False)
    return net


def around(*layers, **settings):
    """Images of 2 channels and 6×6 pixels through a convolution and these layers."""
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, **settings), *layers, nn.Flatten(), nn.LazyLinear(2))


def flat(*sizes):
    """A flattening, and linear layers."""
    return nn.Flatten(), *(nn.Linear(*pair) for pair in pairwise(sizes))


class First(nn.Module):
    """The first of what it is given."""

    def forward(self, pair):
        return pair[0]


class Written(nn.Module):
    """A linear layer, a function, and a head."""

    def __init__(self, function, width=6):
        super().__init__()
        self.body, self.other, self.function = nn.Linear(3, 6), nn.Linear(3, 6), function
        self.head = nn.Linear(width, 2)

    def forward(self, x):
        return self.head(self.function(self, self.body(x), x))


def attend(net, h, x):
    """Attention between the examples' two halves."""
    return nn.functional.scaled_dot_product_attention(*[h.unflatten(-1, (2, 3))] * 3, is_causal=True).flatten(1)


def masked(net, h, x):
    """Attention with a mask that leaves nothing to the first of two positions."""
    mask = torch.tensor([[False, False], [True, False]])
    return nn.functional.scaled_dot_product_attention(*[h.unflatten(-1, (2, 3))] * 3, attn_mask=mask).flatten(1)


def residual(net, h, x):
    h += net.other(x)
    h = nn.functional.relu(h, inplace=True)
    return torch.add(h, net.body(x), alpha=0.5).relu_()


def gated(net, h, x):
    return 1 - h.sigmoid() * nn.functional.gelu(net.other(x)) / (1 + x.square().sum(1, keepdim=True))


def rearranged(net, h, x):
    first, second = h.split(3, dim=1)
    pair = torch.stack([second, first, x]).mean(0, keepdim=True).expand(2, -1, -1)
    return torch.cat([pair.mT.permute(2, 0, 1).flatten(1), h[:, :2].contiguous().view(-1, 2)], dim=1)[:, 2:]


def branching(net, h, x):
    """Control flow that depends on values and shapes."""
    if h.shape[1] != 6 or len(h) == 0 or bool(h.sum() < -1e9):
        return h
    return h.tanh() * (h > 0).to(h.dtype) + h.to(torch.long)


def divided(net, h, x):
    return h / (2 + net.other(x).tanh()) + h.softmax(-1) * h.exp().clamp(max=3)


def quadratic(net, h, x):
    return torch.einsum("ni,nj->nij", h, net.other(x).cos()).mean(1) + (h[:, None] @ h[:, :, None])[:, 0]


def written_into(net, h, x):
    h = 2 * h
    h[:, 0] = x[:, 0]
    return h.clamp_(-1, 1)


IMAGE, VECTOR = (2, 6, 6), (3,)
NETWORKS = {
    "dense": (lambda: frozen(), VECTOR),
    "first layer frozen": (lambda: frozen("0.weight", "0.bias"), VECTOR),
    "weight frozen": (lambda: frozen("2.weight"), VECTOR),
    "bias frozen": (lambda: frozen("2.bias"), VECTOR),
    "no bias": (lambda: nn.Sequential(nn.Linear(3, 4, bias=False), nn.Softplus(), nn.Linear(4, 2)), VECTOR),
    "nested": (lambda: nn.Sequential(frozen()[:2], nn.Sequential(nn.Dropout(0.5), nn.Linear(5, 2))), VECTOR),
    "a layer twice": (twice, VECTOR),
    "a weight in two layers": (shared, VECTOR),
    "parametrized": (lambda: nn.Sequential(orthogonal(nn.Linear(3, 3)), nn.ReLU(), nn.Linear(3, 2)), VECTOR),
    "in place": (lambda: nn.Sequential(nn.Linear(3, 4), nn.LeakyReLU(0.1, inplace=True), nn.Linear(4, 2)), VECTOR),
    "a hook": (hooked, VECTOR),
    "the paper's": (lambda: cnn(2, 2, image_size=6), IMAGE),
    "pooled after": (lambda: around(nn.ReLU(inplace=True), nn.MaxPool2d(2)), IMAGE),
    "overlapping pools": (lambda: around(nn.MaxPool2d(3, 2, padding=1), nn.Identity()), IMAGE),
    "pools beyond the edge": (lambda: around(nn.MaxPool2d(4, 4, ceil_mode=True), nn.Dropout(0.5)), IMAGE),
    "images without channels": (lambda: nn.Sequential(nn.Linear(6, 6), nn.MaxPool2d(2), *flat(9, 2)), (6, 6)),
    "averages": (lambda: around(nn.AvgPool2d(2), nn.Tanh(), nn.AdaptiveAvgPool2d(2)), IMAGE),
    "strided": (lambda: around(nn.ReLU(), stride=2, groups=2, dilation=2), IMAGE),
    "the same size": (lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding="same"), nn.ReLU(), *flat(108, 2)), IMAGE),
    "around the edge": (lambda: around(nn.ReLU(), padding_mode="circular"), IMAGE),
    "normalised": (lambda: around(nn.BatchNorm2d(4), nn.SiLU()), IMAGE),
    "pooled at once": (lambda: nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 3), nn.Linear(3, 2)), IMAGE),
    "pairs": (lambda: nn.Sequential(nn.MaxPool2d(2, return_indices=True), First(), *flat(18, 3, 2)), IMAGE),
    "tokens": (lambda: nn.Sequential(nn.Embedding(7, 3), nn.Flatten(), nn.Linear(12, 3), nn.Linear(3, 2)), (4,)),
    "a forward of its own": (lambda: Written(lambda net, h, x: torch.tanh(h)), VECTOR),
    "attention": (lambda: Written(attend), VECTOR),
    "rounded quotients": (lambda: Written(lambda net, h, x: h + torch.div(h, 0.5, rounding_mode="floor")), VECTOR),
    "residual sums in place": (lambda: Written(residual), VECTOR),
    "gates": (lambda: Written(gated), VECTOR),
    "rearranged": (lambda: Written(rearranged), VECTOR),
    "control flow": (lambda: Written(branching), VECTOR),
    "quotients": (lambda: Written(divided), VECTOR),
    "products": (lambda: Written(quadratic), VECTOR),
    "written into": (lambda: Written(written_into), VECTOR),
    "residual network": (lambda: resnet18(2, 2), IMAGE),
    "text": (lambda: text_encoder(7, 2, width=4, layers=1, heads=2), (4,)),
    "normalised rows": (lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.SiLU(), nn.Linear(4, 2)), VECTOR),
    "statistics of the batch": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2)),
        VECTOR,
    ),
    "a hook on the head": (hooked_head, VECTOR),
}


class Cube(torch.autograd.Function):
    """x³, with a backward and a forward derivative of its own."""

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * gradient

    @staticmethod
    def jvp(ctx, change):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * change


def aliased(net, h, x):
    rows = h.view(-1)
    h.mul_(2)
    return rows.view(-1, 6)


def filled(net, h, x):
    empty = torch.zeros_like(x @ x.T[:, :1].expand(-1, 6))
    empty[:] = h
    return empty


OTHERS = {
    "a function with its own backward": (lambda: Written(lambda net, h, x: Cube.apply(h)), VECTOR),
    "memory under two names": (lambda: Written(aliased), VECTOR),
    "a constant filled": (lambda: Written(filled), VECTOR),
    "complex numbers": (lambda: Written(lambda net, h, x: h.real + torch.fft.fft(h).real.tanh()), VECTOR),
}


def build(name, layout):
    make, shape = {**NETWORKS, **OTHERS}[name]
    net = make()
    is_text = name in ("tokens", "text")
    x = torch.randint(7, (5, *shape)) if is_text else torch.randn(5, *shape, dtype=torch.float64)
    net.double().eval()(x)  # lazy layers see their inputs
    if x.dim() == 4:
        net, x = net.to(memory_format=layout), x.contiguous(memory_format=layout)
    split = Network(net).examined(x)
    net.train()  # the derivative is that of evaluation, whatever the mode
    params = {n: p.detach().clone().requires_grad_() for n, p in net.named_parameters() if p.requires_grad}
    tangents = {n: torch.randn_like(p).requires_grad_() for n, p in params.items() if n not in split.head_names}
    return split, params, tangents, x


def by_torch(split, params, tangents, x):
    """The same by `torch.func.jvp` through the whole network."""

    def features(moving):
        seen = []
        handle = split.linear.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        with evaluating(split.module):
            functional_call(split.module, {**params, **moving}, (x,))
        handle.remove()
        return seen[-1]

    with plain_kernels():
        return jvp(features, ({n: params[n] for n in tangents},), (tangents,))


def check(split, params, tangents, x):
    """Values, changes and their gradients are those of torch."""
    leaves = [*params.values(), *tangents.values()]
    results = []
    for method in (features_jvp, by_torch):
        value, change = method(split, params, tangents, x)
        loss = value.sin().sum() + (value * change).cos().sum()
        results.append([value, change, *torch.autograd.grad(loss, leaves, allow_unused=True)])
    for ours, theirs in zip(*results, strict=True):
        if ours is None or theirs is None:
            assert not any(each is not None and each.any() for each in (ours, theirs))
        else:
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    assert results[0][1].abs().max() > 1e-3


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["first", "last"])
@pytest.mark.parametrize("name", NETWORKS)
def test_value_change_and_their_gradients_are_those_of_torch(name, layout):
    split, params, tangents, x = build(name, layout)
    check(split, params, tangents, x)
    assert split.module not in linearize._WITHOUT_RULES


@pytest.mark.parametrize("name", OTHERS)
def test_what_the_rules_cannot_follow_is_left_to_torch(name):
    split, params, tangents, x = build(name, torch.contiguous_format)
    check(split, params, tangents, x)
    assert split.module in linearize._WITHOUT_RULES


def test_recomputed_activations_have_the_same_derivatives():
    """`torch.func.jvp` does not work with checkpoints."""
    results = []
    for function in (torch.tanh, partial(checkpoint, torch.tanh, use_reentrant=False)):
        torch.manual_seed(0)
        net = Written(lambda net, h, x, function=function: function(h) * net.other(x)).double()
        x = torch.randn(5, 3, dtype=torch.float64)
        params = dict(net.named_parameters())
        tangents = {name: torch.randn_like(p).requires_grad_() for name, p in params.items()}
        value, change = features_jvp(Network(net).examined(x), params, tangents, x)
        leaves = [*params.values(), *tangents.values()]
        results.append([value, change, *torch.autograd.grad((value * change).sum(), leaves, allow_unused=True)])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("enabled", [True, False])
def test_without_gradients_the_rules_are_used_too(make, enabled):
    net, x = make("mlp")
    split, params = Network(net).examined(x), dict(net.named_parameters())
    with torch.set_grad_enabled(enabled):
        value, change = features_jvp(split, params, params, x)
    assert value.requires_grad == change.requires_grad == enabled
    assert net not in linearize._WITHOUT_RULES


def test_a_wrong_input_is_an_error_and_the_rules_stay(make):
    net, x = make("mlp")
    split = Network(net).examined(x)
    params = dict(net.named_parameters())
    with pytest.raises(RuntimeError, match="shapes"):
        features_jvp(split, params, params, x[:, :2])
    assert net not in linearize._WITHOUT_RULES


def test_what_does_not_move_has_no_change():
    split, params, _, x = build("dense", torch.contiguous_format)
    value, change = features_jvp(split, params, {}, x)
    assert change is None
    torch.testing.assert_close(value, split.with_features(x, params)[0])


def test_images_keep_their_memory_order():
    """A change in another order than the value's would be copied at every step."""
    images = torch.randn(2, 2, 6, 6).contiguous(memory_format=torch.channels_last)
    moving = Dual(images, images.sin())
    for layer in (nn.Conv2d(2, 2, 3), nn.MaxPool2d(2), nn.ReLU(), nn.BatchNorm2d(2).eval(), nn.AvgPool2d(2)):
        out = layer(moving)
        assert all(t.is_contiguous(memory_format=torch.channels_last) for t in (out.value, out.change)), layer


def test_attention_to_nothing_is_zero():
    """The first of two positions attends to none, the second to the first; torch's own gradient is NaN there."""
    x, results = torch.randn(5, 3, dtype=torch.float64), []
    net = Written(masked).double()
    for function in (masked, lambda net, h, x: torch.cat([torch.zeros_like(h[:, :3]), h[:, :3]], 1)):
        net.function = function
        params = {name: p.detach().clone().requires_grad_() for name, p in net.named_parameters()}
        tangents = {name: p.detach() for name, p in params.items() if name.startswith("body")}
        value, change = features_jvp(Network(net).examined(x), params, tangents, x)
        loss = value.sin().sum() + (value * change).cos().sum()
        results.append([value, change, *torch.autograd.grad(loss, [params["body.weight"], params["body.bias"]])])
    for ours, by_hand in zip(*results, strict=True):
        torch.testing.assert_close(ours, by_hand)
    assert results[0][1].abs().max() > 1e-3
