"""Residual networks with BatchNorm: He et al. 2016, https://arxiv.org/abs/1512.03385."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fsvi.validation import check_count


def resnet18(in_channels: int = 3, num_classes: int = 10, small_images: bool = True) -> "ResNet":
    """ResNet-18; by default with the stem for 32×32 images (see `ResNet`).

    Args:
        in_channels: The number of channels of the images.
        num_classes: The number of outputs.
        small_images: Whether to use the stem for 32×32 images.
    """
    return ResNet("resnet18", _basic, (2, 2, 2, 2), in_channels, num_classes, small_images)


def resnet50(in_channels: int = 3, num_classes: int = 2, small_images: bool = False) -> "ResNet":
    """ResNet-50; by default with the stem for large images (see `ResNet`).

    Args:
        in_channels: The number of channels of the images.
        num_classes: The number of outputs.
        small_images: Whether to use the stem for 32×32 images.
    """
    return ResNet("resnet50", _bottleneck, (3, 4, 6, 3), in_channels, num_classes, small_images)


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

    Each stage after the first doubles the width and halves the resolution. For small images, of 32×32, a 3×3 stem
    keeps the resolution, instead of a 7×7 stem with max-pool.
    """

    def __init__(
        self,
        made_by: str,
        block: Callable[[int, int, int], Residual],
        depths: Sequence[int],
        in_channels: int,
        num_classes: int,
        small_images: bool,
    ) -> None:
        super().__init__()
        check_count("in_channels", in_channels)
        check_count("num_classes", num_classes)
        self.made_by = made_by
        self.settings = {"in_channels": in_channels, "num_classes": num_classes, "small_images": small_images}
        self.stem = nn.Sequential(*_stem(in_channels, small_images))
        blocks: list[Residual] = []
        channels = 64
        for stage, depth in enumerate(depths):
            for i in range(depth):
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


def _conv_norm(in_channels: int, out_channels: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(in_channels, out_channels, kernel, stride, padding=kernel // 2, bias=False)
    return [conv, nn.BatchNorm2d(out_channels)]


def _init_he(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d) and not module.weight.is_meta:  # drawing on meta is slow and useless
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
