import pytest
import torch
from torch import nn

from fsvi.networks import cnn, mlp, resnet18, resnet50


def count(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def conv(fan_in: int, fan_out: int, kernel: int) -> int:
    """Parameters of a bias-free convolution and the BatchNorm behind it."""
    return fan_in * fan_out * kernel**2 + 2 * fan_out


def basic_stage(fan_in: int, width: int) -> int:
    shortcut = conv(fan_in, width, 1) if fan_in != width else 0
    return conv(fan_in, width, 3) + 3 * conv(width, width, 3) + shortcut


def bottleneck_stage(fan_in: int, width: int, depth: int) -> int:
    def block(channels: int) -> int:
        return conv(channels, width, 1) + conv(width, width, 3) + conv(width, 4 * width, 1)

    return block(fan_in) + conv(fan_in, 4 * width, 1) + (depth - 1) * block(4 * width)


NETWORKS = {
    "mlp": (lambda: mlp(2, (30, 30), 2, nn.Tanh), (2,), 2),
    "linear": (lambda: mlp(3, (), 4), (3,), 4),
    "cnn": (lambda: cnn(), (1, 28, 28), 10),
    "cnn32": (lambda: cnn(3, 7, image_size=32, dropout=0.5), (3, 32, 32), 7),
    "resnet18": (lambda: resnet18(), (3, 32, 32), 10),
    "resnet18_large": (lambda: resnet18(1, 4, small_images=False), (1, 64, 64), 4),
    "resnet50": (lambda: resnet50(), (3, 64, 64), 2),
    "resnet50_small": (lambda: resnet50(small_images=True), (3, 16, 16), 2),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_output_shape_and_gradient_reaches_every_parameter(name):
    make, shape, outputs = NETWORKS[name]
    torch.manual_seed(0)
    net = make()
    y = net(torch.randn(4, *shape))
    assert y.shape == (4, outputs)
    y.square().sum().backward()
    unreached = [n for n, p in net.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert unreached == []


def test_parameter_counts():
    assert count(mlp(2, (30, 30), 2)) == (2 * 30 + 30) + (30 * 30 + 30) + (30 * 2 + 2)
    assert count(cnn()) == (9 * 32 + 32) + (32 * 64 * 9 + 64) + (64 * 7 * 7 * 128 + 128) + (128 * 10 + 10)
    stages = [(64, 64), (64, 128), (128, 256), (256, 512)]
    assert count(resnet18()) == conv(3, 64, 3) + sum(basic_stage(*s) for s in stages) + 512 * 10 + 10 == 11_173_962
    deep = [(64, 64, 3), (256, 128, 4), (512, 256, 6), (1024, 512, 3)]
    expected = conv(3, 64, 7) + sum(bottleneck_stage(*s) for s in deep) + 2048 * 2 + 2
    assert count(resnet50()) == expected == 23_512_130


def test_mlp_layers_and_activation():
    assert [type(m) for m in mlp(1, (5,), activation=nn.Tanh)] == [nn.Linear, nn.Tanh, nn.Linear]


def test_cnn_is_the_papers():
    """Convolution, ReLU, pool, in the paper's order; ours pools first, which gives the same values."""
    net, x = cnn(), torch.randn(3, 1, 28, 28)
    pool, relu = nn.MaxPool2d(2), nn.ReLU()
    convolved = pool(relu(net[3](pool(relu(net[0](x))))))
    torch.testing.assert_close(net(x), net[9](relu(net[7](convolved.flatten(1)))))
    assert (net[0].out_channels, net[3].out_channels, net[7].out_features) == (32, 64, 128)
    assert any(isinstance(m, nn.Dropout) for m in cnn(dropout=0.1))


def test_resnet18_resolution_on_small_images():
    net = resnet18().eval()
    x = net.stem(torch.randn(1, 3, 32, 32))
    assert x.shape == (1, 64, 32, 32)
    assert net.blocks(x).shape == (1, 512, 4, 4)
    assert isinstance(net.fc, nn.Linear)


def test_resnet50_resolution_on_large_images():
    net = resnet50().eval()
    x = net.stem(torch.randn(1, 3, 64, 64))
    assert x.shape == (1, 64, 16, 16)
    assert net.blocks(x).shape == (1, 2048, 2, 2)


def test_convolutions_have_he_scale():
    torch.manual_seed(0)
    weight = resnet18().blocks[-1].body[0].weight
    assert weight.std().item() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.02)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: mlp(0), "in_features"),
        (lambda: mlp(1, (5, -3)), r"hidden\[1\]"),
        (lambda: mlp(1, out_features=0), "out_features"),
        (lambda: mlp(1.5), "in_features"),
        (lambda: cnn(in_channels=0), "in_channels"),
        (lambda: cnn(image_size=3), "image_size"),
        (lambda: cnn(dropout=1.0), "dropout"),
        (lambda: resnet18(num_classes=0), "num_classes"),
        (lambda: resnet50(in_channels=-1), "in_channels"),
    ],
)
def test_impossible_sizes_are_named(make, named):
    with pytest.raises(ValueError, match=named):
        make()
