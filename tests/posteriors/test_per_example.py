from collections import defaultdict

import pytest
import torch
from torch import nn

from fsvi.errors import InvalidInputError
from fsvi.networks import Network
from fsvi.posteriors.per_example import gradient_moments, record, weight_layers


class TimeMajor(nn.Module):
    """Turns (n, length, 3) around, so that a layer's first dimension is not the batch's."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.body(x.transpose(0, 1)).mean(0))


CONVOLUTIONS = {
    "stride": dict(stride=2),
    "uneven": dict(stride=(2, 1), padding=(0, 1)),
    "dilation": dict(dilation=2, padding=2),
    "same": dict(padding="same", dilation=(1, 3)),
    "valid": dict(padding="valid"),
    "reflect": dict(padding=1, padding_mode="reflect"),
    "groups": dict(groups=2, bias=False),
    "no bias": dict(bias=False, stride=2, padding=1),
}


def convolution(name):
    kernel = (2, 3) if name == "same" else 3
    layers = [nn.Conv2d(4, 6, kernel, **CONVOLUTIONS[name]), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(24, 2)).double()


def closed_form(net, x, cotangent):
    """The gradients of ⟨cotangent, f(x)⟩ of every example, by name, from one backward pass."""
    params = {name: p.detach() for name, p in net.named_parameters()}
    values, recording = record(Network(net), params, weight_layers(net), x)
    found = recording.gradients(values, cotangent[None])
    rows = defaultdict(list)
    for layer, patches, gradients in recording.pairs(found, torch.float64):
        own = gradients[0].mT @ layer.with_one(patches)
        total, squares = gradient_moments(layer, patches, gradients[0])
        torch.testing.assert_close(total, own.sum(0))
        torch.testing.assert_close(squares, own.square().sum(0))
        for name, row in layer.tensors(own).items():
            rows[name].append(row)
    return {name: torch.cat(parts) for name, parts in rows.items()}


def one_by_one(net, x, cotangent, names):
    """The same, from a backward pass for each."""
    params = dict(net.named_parameters())
    wanted = [params[name] for name in names]
    rows = [
        torch.autograd.grad((net(x[i : i + 1]) * cotangent[i]).sum(), wanted, materialize_grads=True)
        for i in range(len(x))
    ]
    return dict(zip(names, map(torch.stack, zip(*rows, strict=True)), strict=True))


def assert_same_rows(net, x):
    net.eval()
    cotangent = torch.randn_like(net(x))
    rows = closed_form(net, x, cotangent)
    expected = one_by_one(net, x, cotangent, list(rows))
    for name, row in rows.items():
        torch.testing.assert_close(row, expected[name])
    return rows


NUM_LAYERS = {
    "mlp": 2,
    "no_bias": 2,
    "head_first": 2,
    "tied_features": 3,
    "transformer": 6,
    "lstm": 1,
    "depthwise": 3,
    "layer_norm": 3,
    "batch_norm": 3,
}


@pytest.mark.parametrize(("name", "num_layers"), NUM_LAYERS.items())
def test_every_examples_gradient_is_that_of_its_own_backward_pass(make, name, num_layers):
    net, x = make(name, num=3)
    assert len(weight_layers(net)) == num_layers
    rows = assert_same_rows(net, x)
    assert rows.keys() == {name for layer in weight_layers(net) for name in layer.names}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_of_every_kind_and_activations_in_place(name):
    assert_same_rows(convolution(name), torch.randn(11, 4, 7, 8, dtype=torch.float64))


def test_in_training_mode_gradients_through_batch_norm_sum_to_the_batchs(make):
    net, x = make("batch_norm")
    cotangent = torch.randn(len(x), 2, dtype=torch.float64)
    rows = closed_form(net, x, cotangent)
    params = dict(net.named_parameters())
    expected = torch.autograd.grad((net(x) * cotangent).sum(), [params[name] for name in rows])
    for row, gradient in zip(rows.values(), expected, strict=True):
        torch.testing.assert_close(row.sum(0), gradient)


def test_matrices_and_parameters_turn_into_each_other():
    net = nn.Conv2d(4, 6, (2, 3), groups=2)
    (layer,) = weight_layers(net)
    params = dict(net.named_parameters())
    matrix = layer.matrix(params)
    assert matrix.shape == layer.matrix_shape == (2, 3, 13)
    patch = torch.randn(4, 2, 3)
    parts = torch.cat([patch.reshape(2, 12), torch.ones(2, 1)], dim=1)
    torch.testing.assert_close((matrix @ parts[:, :, None]).flatten(), net(patch[None]).flatten())
    back = layer.tensors(torch.stack([matrix, 2 * matrix]))
    for name, p in params.items():
        torch.testing.assert_close(back[name], torch.stack([p, 2 * p]))


def test_layers_whose_inputs_do_not_start_with_the_batch_are_refused():
    net = TimeMajor()
    with pytest.raises(InvalidInputError, match=r"'body\.weight'.*\(5, 2, 3\)"):
        record(Network(net), dict(net.named_parameters()), weight_layers(net), torch.randn(2, 5, 3))
