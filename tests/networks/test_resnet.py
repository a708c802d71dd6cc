import pytest
import torch
from torch import nn

from fsvi.networks import ResNet


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


def test_the_number_of_parameters():
    stages = [(64, 64), (64, 128), (128, 256), (256, 512)]
    assert count(ResNet()) == conv(3, 64, 3) + sum(basic_stage(*s) for s in stages) + 512 * 10 + 10 == 11_173_962
    deep = [(64, 64, 3), (256, 128, 4), (512, 256, 6), (1024, 512, 3)]
    expected = conv(3, 64, 7) + sum(bottleneck_stage(*s) for s in deep) + 2048 * 2 + 2
    assert count(ResNet(50, num_classes=2, small_images=False)) == expected == 23_512_130


def test_convolutions_have_he_scale():
    torch.manual_seed(0)
    weight = ResNet().blocks[-1].body[0].weight
    assert weight.std().item() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.02)
