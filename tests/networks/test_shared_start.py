"""What passes share: outputs equal those of full passes to the bit, and the start is computed once."""

import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fsvi.networks.shared_start import SharedStart

X = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))


class Branches(nn.Module):
    """A residual network whose own forward looks at shapes and values."""

    def __init__(self, in_place: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.in_place = in_place
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        h = torch.relu(self.first(x)).view(x.shape[0], -1)
        low, high = h.split(2, dim=1)
        h = torch.cat([high, low], 1) if float(h.sum()) > 0 else h
        change = self.second(torch.tanh(h))
        h = h.add_(change) if self.in_place else h + change
        return self.head(h)


class Noisy(Branches):
    """Draws random numbers in every pass."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + torch.randn_like(x))


class Restless(Branches):
    """Makes other calls in its third pass."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.abs() if self.calls == 2 else x)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x[:, None])[0][:, -1])


class Paired(nn.Module):
    """Changes one of a pair of results in place, after a layer that may be random."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h, _ = self.first(x)[:, None].max(1)
        h += self.second(h)
        return self.head(h)


class FrozenStart(Paired):
    """Computes its first layer in inference mode, where changes in place are not counted."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.inference_mode():
            h = self.first(x)
        return self.head(self.second(h.clone()) + h)


def draws(net: nn.Module, names: list[str], num: int = 3) -> list[dict[str, Tensor]]:
    return [{name: torch.randn_like(net.get_parameter(name)) for name in names} for _ in range(num)]


def shared_outputs(net: nn.Module, params: list[dict[str, Tensor]], x: Tensor = X) -> list[Tensor]:
    start = SharedStart(net)

    def passes(tensors: dict[str, Tensor]) -> Tensor:
        start.watch(tensors.values())
        return functional_call(net, tensors, (x,))

    return [start.run(lambda tensors=tensors: passes(tensors)) for tensors in params]


@torch.no_grad()
@pytest.mark.parametrize("names", [["head.weight"], ["second.bias"], ["head.bias", "first.bias"], []])
def test_outputs_are_those_of_full_passes(names):
    net = Branches().eval()
    params = draws(net, names)
    expected = [functional_call(net, tensors, (X,)) for tensors in params]
    assert all(map(torch.equal, shared_outputs(net, params), expected))


@torch.no_grad()
@pytest.mark.parametrize("make", [lambda: Branches(in_place=True), Restless, Recurrent])
def test_networks_that_cannot_share_everything_are_exact_too(make):
    net = make().eval()
    params = draws(net, ["head.weight"], 4)
    net.calls = 0
    expected = [functional_call(net, tensors, (X,)) for tensors in params]
    net.calls = 0
    assert all(map(torch.equal, shared_outputs(net, params), expected))


@torch.no_grad()
@pytest.mark.parametrize("make", [lambda: Branches(in_place=True), Paired, FrozenStart])
def test_tensors_changed_in_place_after_the_start_are_computed_again(make):
    net = make().eval()
    params = draws(net, ["second.weight"])
    expected = [functional_call(net, tensors, (X,)) for tensors in params]
    assert all(map(torch.equal, shared_outputs(net, params), expected))


@torch.no_grad()
def test_random_numbers_before_the_start_ends_are_drawn_in_every_pass():
    net = Noisy().eval()
    same = draws(net, ["head.weight"], 1) * 3
    assert len(torch.stack(shared_outputs(net, same)).unique(dim=0)) == 3


@torch.no_grad()
def test_the_start_is_computed_once():
    net = Branches().eval()
    compute = SharedStart(net)
    product = torch.nn.functional.linear

    class Counting(torch.overrides.TorchFunctionMode):
        num = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.num += func is product
            return func(*args, **(kwargs or {}))

    with Counting() as counting:
        for tensors in draws(net, ["head.weight"], 5):

            def one_pass(tensors: dict[str, Tensor] = tensors) -> Tensor:
                compute.watch(tensors.values())
                return functional_call(net, tensors, (X,))

            compute.run(one_pass)
    assert counting.num == 2 + 5


@torch.no_grad()
def test_only_results_in_use_are_kept():
    """Of five layers, the output of the last before the end stays; those before it are freed."""
    net = nn.Sequential(*(nn.Linear(3, 3) for _ in range(5))).eval()
    made: list[weakref.ref] = []
    for layer in net:
        layer.register_forward_hook(lambda _, args, out: made.append(weakref.ref(out)))
    start = SharedStart(net)

    def one_pass() -> Tensor:
        h = net[:4](X)
        start.end()
        return net[4](h)

    start.run(one_pass)
    assert [ref() is None for ref in made[:4]] == [True, True, True, False]


@torch.no_grad()
def test_an_end_that_is_stated_is_the_end():
    net = Branches().eval()
    start = SharedStart(net)

    def one_pass(factor: float) -> Tensor:
        h = net.first(X)
        start.end()
        return net.head(h * factor)

    for factor in (1.0, 2.0, -3.0):
        assert torch.equal(start.run(lambda factor=factor: one_pass(factor)), net.head(net.first(X) * factor))


def test_inference_mode_makes_full_passes():
    net = Branches().eval()
    with torch.inference_mode():
        params = draws(net, ["head.weight"])
        expected = [functional_call(net, tensors, (X,)) for tensors in params]
        assert all(map(torch.equal, shared_outputs(net, params), expected))


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_padding_is_still_dropped():
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1).eval()
    x, mask = torch.randn(2, 3, 4), torch.tensor([[False, False, True], [False, False, False]])
    start = SharedStart(encoder)
    assert torch.equal(start.run(lambda: encoder(x, src_key_padding_mask=mask)), encoder(x, src_key_padding_mask=mask))
