from collections import OrderedDict, namedtuple

import pytest
import torch
from torch import nn

from fsvi.errors import HeadError
from fsvi.inputs import bundle
from fsvi.networks import Network
from fsvi.networks.calls import call, unwrap
from fsvi.validation import as_tensor

LOGITS, OTHER = torch.randn(2, 3), torch.randn(2, 4)
Named = namedtuple("Named", ["hidden", "logits"])


class Sum(nn.Module):
    """a + 2 b, with a linear layer on top."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, a, b):
        return self.fc(a + 2 * b)


class Whole(Sum):
    """The same on a dictionary as the only argument."""

    def forward(self, batch):
        return super().forward(batch["a"], batch["b"])


A, B = torch.randn(4, 3), torch.randn(4, 3)


@pytest.mark.parametrize("net", [Sum, Whole])
@pytest.mark.parametrize("x", [{"a": A, "b": B}, {"b": B, "a": A}])
def test_dictionaries_become_named_arguments_or_the_only_one(net, x):
    net = net()
    structured = bundle(x, as_tensor)
    assert torch.equal(call(net, structured, None), net.fc(A + 2 * B))
    zeros = {"fc.weight": torch.zeros(2, 3), "fc.bias": torch.tensor([1.0, 2.0])}
    assert torch.equal(call(net, structured, zeros), torch.tensor([[1.0, 2.0]]).expand(4, 2))


def test_tuples_become_positional_arguments():
    net = Sum()
    assert torch.equal(call(net, bundle((A, B), as_tensor), None), net.fc(A + 2 * B))


@pytest.mark.parametrize(
    "returned",
    [
        LOGITS,
        {"hidden": OTHER, "logits": LOGITS},
        OrderedDict(out=LOGITS),
        Named(OTHER, LOGITS),
        (LOGITS, OTHER),
        [LOGITS],
    ],
)
def test_outputs_in_the_usual_places(returned):
    assert unwrap(returned, None) is LOGITS


def test_outputs_elsewhere_are_stated_or_asked_for():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 2)

        def forward(self, x):
            return {"first": x, "second": self.fc(x)}

    with pytest.raises(HeadError, match="output="):
        Network(Net()).examined(A)
    assert Network(Net(), output="second").examined(A).head == "fc"
