import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import fsvi
from fsvi.networks.calls import functional_call


class _Net(nn.Module):
    """Two blocks, in checkpoints or not; one checkpoint can be inside another."""

    def __init__(self, layer: nn.Module, kind: str) -> None:
        super().__init__()
        self.start = nn.Linear(4, 8)
        self.inner = nn.Sequential(nn.Linear(8, 8), layer, nn.Tanh())
        self.outer = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.head = nn.Linear(8, 3)
        self.kind = kind

    def forward(self, x):
        if self.kind == "none":
            return self.head(self.outer(self.inner(self.start(x))))
        reentrant = self.kind == "reentrant"
        x = checkpoint(self.start, x, use_reentrant=reentrant)  # whose input needs no gradient
        if self.kind == "nested":
            return self.head(checkpoint(self._both, x, use_reentrant=False))
        x = checkpoint(self.inner, x, use_reentrant=reentrant)
        return self.head(checkpoint(self.outer, x, use_reentrant=reentrant))

    def _both(self, x):
        return self.outer(checkpoint(self.inner, x, use_reentrant=False))


_CONTEXT = fsvi.contexts.Uniform(low=-2.0, high=2.0)
_METHODS = {
    "MAP": lambda net: fsvi.MAP(net, fsvi.Categorical()),
    "SPG": lambda net: fsvi.SPG(net, fsvi.Categorical(), _CONTEXT, num_prior_steps=2),
    "MFVI": lambda net: fsvi.MFVI(net, fsvi.Categorical(), num_samples=2),
    "IVON": lambda net: fsvi.IVON(net, fsvi.Categorical()),
    "VOGN": lambda net: fsvi.VOGN(net, fsvi.Categorical()),
    "Rank1": lambda net: fsvi.Rank1(net, fsvi.Categorical()),
    "FBNN": lambda net: fsvi.FBNN(net, fsvi.Categorical(), _CONTEXT, num_samples=3),
    "jvp": lambda net: fsvi.FSVI(net, fsvi.Categorical(), _CONTEXT, linearize="jvp"),
    "conditional": lambda net: fsvi.FSVI(net, fsvi.Categorical(), _CONTEXT, linearize="conditional", num_samples=2),
    "last layer": lambda net: fsvi.FSVI(net, fsvi.Categorical(), _CONTEXT, stochastic="last_layer"),
}
_LAYERS = {
    "no layer": nn.Identity,
    "dropout": lambda: nn.Dropout(0.5),
    # as in plain PyTorch, statistics would learn from a checkpoint's batch twice
    "BatchNorm": lambda: nn.BatchNorm1d(8, momentum=0.0),
}


def _gradient(make, layer, kind):
    torch.manual_seed(0)
    method = make(_Net(layer(), kind).double())
    x, y = method.check_batch(torch.randn(10, 4, dtype=torch.float64), torch.randint(3, (10,)))
    method.num_data = 100
    method.begin(x, y)
    method.train()
    torch.manual_seed(1)
    sum(method(x, y).values()).backward()
    return {name: p.grad.clone() for name, p in method.named_parameters() if p.grad is not None}


_KINDS = ["plain", "nested", "reentrant"]
_CASES = [(m, list(_LAYERS)[(i + j) % 3], kind) for i, m in enumerate(_METHODS) for j, kind in enumerate(_KINDS)]
_PLAIN = ("MAP", "SPG", "last layer", "VOGN")
"""Methods that call the network as it is; there the reentrant kind needs inputs with gradients, as in torch."""


@pytest.mark.parametrize(("method", "layer", "kind"), _CASES)
def test_checkpoints_do_not_change_the_gradient(method, layer, kind):
    make, layer = _METHODS[method], _LAYERS[layer]
    if method in _PLAIN and kind == "reentrant":
        pytest.skip("plain PyTorch has no gradient here either")
    if method == "jvp":  # torch.func does not see a checkpoint's second pass
        with pytest.raises(fsvi.errors.InvalidInputError, match="conditional"):
            _gradient(make, layer, kind)
        return
    torch.testing.assert_close(_gradient(make, layer, kind), _gradient(make, layer, "none"))


def _weight_gradient(net, weight, reentrant):
    x = torch.randn(3, 2, generator=torch.Generator().manual_seed(0)).requires_grad_()
    output = functional_call(_Checkpointed(net, reentrant), {"net.0.weight": weight}, (x,), {})
    (output**2).sum().backward()
    return weight.grad


class _Checkpointed(nn.Module):
    def __init__(self, net, reentrant):
        super().__init__()
        self.net, self.reentrant = net, reentrant

    def forward(self, x):
        return checkpoint(self.net, x, use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [False, True])
def test_replaced_parameters_come_back_for_the_second_call_and_go_again(reentrant):
    net = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1))
    own, weight = net[0].weight, torch.randn(2, 2, requires_grad=True)
    gradient = _weight_gradient(net, weight, reentrant)
    assert net[0].weight is own
    x = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    again = weight.detach().clone().requires_grad_()
    (torch.func.functional_call(net, {"0.weight": again}, (x,)) ** 2).sum().backward()
    torch.testing.assert_close(gradient, again.grad)
