"""Networks as plain values: described, built again, the same function; or refused."""

import json

import pytest
import torch
from torch import nn

from fsvi.errors import FileFormatError
from fsvi.networks import ResNet, cnn, mlp
from fsvi.networks.description import _LAYERS, build, describe
from fsvi.networks.distance import RandomFeatures
from fsvi.networks.tabular import TabularFeatures

VECTORS = {
    "Linear": nn.Linear(4, 4, bias=False),
    "RandomFeatures": RandomFeatures(4, 6, 0.5, normalize=True),
    "TabularFeatures": TabularFeatures(4, 2, (3,), members=2),
    "BatchNorm1d": nn.BatchNorm1d(4, eps=1e-2, momentum=None, affine=False),
    "LayerNorm": nn.LayerNorm((4,), eps=0.1, bias=False),
    "Dropout": nn.Dropout(0.3, inplace=True),
    "AlphaDropout": nn.AlphaDropout(0.2),
    "ReLU": nn.ReLU(inplace=True),
    "ReLU6": nn.ReLU6(),
    "LeakyReLU": nn.LeakyReLU(0.2),
    "PReLU": nn.PReLU(4, init=0.1),
    "ELU": nn.ELU(0.7),
    "SELU": nn.SELU(),
    "CELU": nn.CELU(0.5),
    "GELU": nn.GELU("tanh"),
    "SiLU": nn.SiLU(),
    "Mish": nn.Mish(),
    "Sigmoid": nn.Sigmoid(),
    "Tanh": nn.Tanh(),
    "Softplus": nn.Softplus(2.0, 10.0),
    "Softsign": nn.Softsign(),
    "Hardtanh": nn.Hardtanh(-0.5, 0.3),
    "Hardswish": nn.Hardswish(),
    "Hardsigmoid": nn.Hardsigmoid(),
    "LogSigmoid": nn.LogSigmoid(),
    "Identity": nn.Identity(),
}
SERIES = {
    "Conv1d": nn.Conv1d(2, 3, 2, dilation=2),
    "MaxPool1d": nn.MaxPool1d(2, padding=1),
    "AvgPool1d": nn.AvgPool1d(2, count_include_pad=False),
    "AdaptiveAvgPool1d": nn.AdaptiveAvgPool1d(3),
    "AdaptiveMaxPool1d": nn.AdaptiveMaxPool1d(3),
    "Dropout1d": nn.Dropout1d(0.4),
}
IMAGES = {
    "Conv2d": nn.Conv2d(2, 4, (3, 2), stride=2, padding="valid", groups=2, bias=False, padding_mode="reflect"),
    "BatchNorm2d": nn.BatchNorm2d(2, track_running_stats=False),
    "GroupNorm": nn.GroupNorm(2, 2, affine=False),
    "InstanceNorm2d": nn.InstanceNorm2d(2, affine=True),
    "Dropout2d": nn.Dropout2d(0.4),
    "MaxPool2d": nn.MaxPool2d((2, 1), ceil_mode=True),
    "AvgPool2d": nn.AvgPool2d(2, divisor_override=3),
    "AdaptiveAvgPool2d": nn.AdaptiveAvgPool2d((None, 2)),
    "AdaptiveMaxPool2d": nn.AdaptiveMaxPool2d(2),
    "Flatten": nn.Flatten(2),
    "Unflatten": nn.Unflatten(1, (2, 1)),
}
VOLUMES = {"Conv3d": nn.Conv3d(2, 1, 2), "BatchNorm3d": nn.BatchNorm3d(2)}
SHAPES = [(VECTORS, (4,)), (SERIES, (2, 6)), (IMAGES, (2, 6, 6)), (VOLUMES, (2, 3, 3, 3))]
CASES = [(name, layer, shape) for layers, shape in SHAPES for name, layer in layers.items()]


def rebuilt(net: nn.Module) -> nn.Module:
    """The network, by way of JSON, with its parameters."""
    again = build(json.loads(json.dumps(describe(net), sort_keys=True)))
    again.load_state_dict(net.state_dict())
    return again


def assert_same_function(net: nn.Module, again: nn.Module, x: torch.Tensor) -> None:
    """The same bits, in both modes."""
    for mode in (True, False):
        outputs = []
        for each in (net.train(mode), again.train(mode)):
            torch.manual_seed(3)
            outputs.append(each(x.clone()))
        assert torch.equal(*outputs)


def test_every_known_layer_is_tested():
    assert {name for name, _, _ in CASES} == _LAYERS.keys() - {"DistanceFeatures", "ResNet", "TextEncoder"}


@pytest.mark.parametrize(("name", "layer", "shape"), CASES, ids=[name for name, _, _ in CASES])
def test_a_layer_comes_back_with_its_settings(name, layer, shape):
    net = nn.Sequential(layer, nn.Identity())
    again = rebuilt(net)
    assert repr(again) == repr(net) and type(again[0]) is _LAYERS[name]
    assert_same_function(net, again, torch.randn(5, *shape))


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: mlp(3, (4, 5), 2, nn.Tanh), (3,)),
        (lambda: cnn(2, 3, 8, dropout=0.5), (2, 8, 8)),
        (lambda: ResNet(18, 1, 2, small_images=False), (1, 32, 32)),
        (lambda: nn.Sequential(nn.Unflatten(1, (1, 8, 8)), ResNet(18, 1, 5)), (64,)),
    ],
    ids=["mlp", "cnn", "large_images", "nested_resnet"],
)
def test_our_own_networks_come_back(make, shape):
    net = make()
    again = rebuilt(net)
    assert repr(again) == repr(net)
    assert_same_function(net, again, torch.randn(4, *shape))


def test_names_order_and_type_come_back():
    net = nn.Sequential()
    for name, layer in (("second", nn.Linear(3, 4)), ("a", nn.Tanh()), ("10", nn.Linear(4, 2))):
        net.add_module(name, layer)
    again = rebuilt(net.double())
    assert list(again._modules) == ["second", "a", "10"]
    assert all(p.dtype == torch.float64 for p in again.parameters())


# What is not described


class Linear(nn.Linear):
    """A user's class with the name of a known one."""

    def forward(self, x):
        return 2 * super().forward(x)


def changed(change):
    net = mlp(3, (3,), 3)
    change(net)
    return net


def changed_resnet(change):
    net = ResNet(18, 1, 2)
    change(net)
    return net


STRANGE = {
    "same_name": nn.Sequential(Linear(3, 2)),
    "recurrent": nn.Sequential(nn.LSTM(3, 2)),
    "shared_layer": nn.Sequential(*[nn.Linear(3, 3)] * 2),
    "hook": changed(lambda net: net[1].register_forward_hook(lambda m, a, out: 2 * out)),
    "weight_norm": changed(lambda net: nn.utils.parametrizations.weight_norm(net[0])),
    "forward": changed(lambda net: setattr(net[1], "forward", torch.sin)),
    "buffer": changed(lambda net: net.register_buffer("scale", torch.ones(1))),
    "two_types": changed(lambda net: net[0].double()),
    "bad_setting": nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten()),
    "lost_setting": nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)),
    "resnet_layer": changed_resnet(lambda net: setattr(net.blocks[0].body, "2", nn.Tanh())),
    "resnet_hook": changed_resnet(lambda net: net.blocks[0].register_forward_hook(lambda m, a, out: 2 * out)),
    "resnet_forward": changed_resnet(lambda net: setattr(net.blocks[3], "forward", torch.relu)),
}
STRANGE["bad_setting"][0].stride = "far"
del STRANGE["lost_setting"][1].elementwise_affine


@pytest.mark.parametrize("net", STRANGE.values(), ids=STRANGE)
def test_what_could_not_be_built_again_is_not_described(net):
    assert describe(net) is None


# What is not built

GOOD = describe(mlp(3))
LINEAR = {"in_features": 3, "out_features": 1}


def layers(layer, **settings):
    return {**GOOD, "layers": {"layer": layer, "settings": settings}}


@pytest.mark.parametrize(
    ("description", "message"),
    [
        (layers("os.system", command="true"), r"'os\.system'"),
        (layers("Linear", **LINEAR, device="meta"), "device='meta'"),
        (layers("Linear", **LINEAR, bias={"a": 1}), "bias={'a': 1}"),
        (layers("Linear", **LINEAR, colour="red"), "'colour'"),
        (layers("Linear", in_features=-1, out_features=2), "built"),
        (layers("Conv2d", in_channels=2, out_channels=2, kernel_size=1, groups=0), "built"),
        ({**GOOD, "dtype": "torch.load"}, "built"),
        ({**GOOD, "layers": {"layer": "Sequential", "children": [["a.b", GOOD["layers"]]]}}, "built"),
        (3, "built"),
    ],
)
def test_a_wrong_description_is_refused_in_one_sentence(description, message):
    with pytest.raises(FileFormatError, match=message) as caught:
        build(description)
    assert "\n" not in str(caught.value)


def test_a_network_larger_than_the_limit_takes_no_memory():
    huge = layers("Linear", in_features=2**21, out_features=2**21)
    with pytest.raises(FileFormatError, match=f"{2**42 + 2**21} .*100"):
        build(huge, limit=100)
    assert build(GOOD, limit=3 * 50 + 50 + 50 + 1)[0].in_features == 3
