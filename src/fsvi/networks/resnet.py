"""Residual networks with BatchNorm: He et al. 2016, https://arxiv.org/abs/1512.03385."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fsvi.errors import InvalidInputError
from fsvi.validation import check_count


class Residual(nn.Module):
    """relu(body(x) + shortcut(x)); the shortcut is the identity if the shapes allow it."""

    def __init__(self, body: Sequence[nn.Module], in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.out_channels = out_channels
        self.body = nn.Sequential(*body)
        same_shape = stride == 1 and in_channels == out_channels
        self.shortcut = nn.Sequential(*([] if same_shape else _conv_norm(in_channels, out_channels, 1, stride)))

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps in, feature maps out."""
        return torch.relu(self.body(x) + self.shortcut(x))


class ResNet(nn.Module):
    """A stem, four stages of residual blocks, a global average pool and the linear layer `fc`.

    Each stage after the first doubles the width and halves the resolution.

    Args:
        depth: 18, or 50, whose blocks have a bottleneck.
        in_channels: The number of channels of the images.
        num_classes: The number of outputs.
        small_images: Whether the stem is a 3×3 convolution, which keeps the resolution of images of 32×32. Otherwise
            it is one of 7×7 with a max-pool.
    """

    def __init__(self, depth: int = 18, in_channels: int = 3, num_classes: int = 10, small_images: bool = True) -> None:
        super().__init__()
        if depth not in _STAGES:
            raise InvalidInputError(f"depth={depth!r} must be 18 or 50.")
        self.depth, self.small_images = depth, small_images
        self.in_channels = check_count("in_channels", in_channels)
        self.num_classes = check_count("num_classes", num_classes)
        block, lengths = _STAGES[depth]
        self.stem = nn.Sequential(*_stem(in_channels, small_images))
        blocks: list[Residual] = []
        channels = 64
        for stage, length in enumerate(lengths):
            for i in range(length):
                stride = 2 if stage > 0 and i == 0 else 1
                blocks.append(block(channels, 64 * 2**stage, stride))
                channels = blocks[-1].out_channels
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.fc = nn.Linear(channels, num_classes)
        self.apply(_init_he)

    def forward(self, x: Tensor) -> Tensor:
        """Images (n, channels, height, width) in, outputs (n, num_classes) out."""
        return self.fc(self.pool(self.blocks(self.stem(x))))


def resnet18(in_channels: int = 3, num_classes: int = 10, small_images: bool = True) -> ResNet:
    """ResNet-18; by default with the stem for images of 32×32.

    Args:
        in_channels: As for `ResNet`.
        num_classes: As for `ResNet`.
        small_images: As for `ResNet`.
    """
    return ResNet(18, in_channels, num_classes, small_images)


def resnet50(in_channels: int = 3, num_classes: int = 10, small_images: bool = False) -> ResNet:
    """ResNet-50; by default with the stem for large images.

    Args:
        in_channels: As for `ResNet`.
        num_classes: As for `ResNet`.
        small_images: As for `ResNet`.
    """
    return ResNet(50, in_channels, num_classes, small_images)


def _stem(in_channels: int, small_images: bool) -> list[nn.Module]:
    if small_images:
        return [*_conv_norm(in_channels, 64, 3), nn.ReLU()]
    return [*_conv_norm(in_channels, 64, 7, stride=2), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)]


def _basic(in_channels: int, width: int, stride: int) -> Residual:
    body = [*_conv_norm(in_channels, width, 3, stride), nn.ReLU(), *_conv_norm(width, width, 3)]
    return Residual(body, in_channels, width, stride)


def _bottleneck(in_channels: int, width: int, stride: int) -> Residual:
    narrow = [*_conv_norm(in_channels, width, 1), nn.ReLU(), *_conv_norm(width, width, 3, stride), nn.ReLU()]
    return Residual([*narrow, *_conv_norm(width, 4 * width, 1)], in_channels, 4 * width, stride)


_STAGES: dict[int, tuple[Callable[[int, int, int], Residual], tuple[int, ...]]] = {
    18: (_basic, (2, 2, 2, 2)),
    50: (_bottleneck, (3, 4, 6, 3)),
}
"""The blocks of each depth, and how many every stage has."""


def _conv_norm(in_channels: int, out_channels: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(in_channels, out_channels, kernel, stride, padding=kernel // 2, bias=False)
    return [conv, nn.BatchNorm2d(out_channels)]


def _init_he(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d) and not module.weight.is_meta:  # drawing on meta is slow and useless
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
