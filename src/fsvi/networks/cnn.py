"""The paper's convolutional network for small images."""

from torch import nn

from fsvi.errors import InvalidInputError
from fsvi.networks.sizes import check_sizes


def cnn(in_channels: int = 1, num_classes: int = 10, image_size: int = 28, dropout: float = 0.0) -> nn.Sequential:
    """Two 3×3 convolutions (32 and 64 channels), each pooled by 2, a dense layer of 128 and a linear head.

    Args:
        in_channels: Channels of an image.
        num_classes: Number of outputs.
        image_size: Height and width of an image, at least 4.
        dropout: Probability of dropping a unit of the dense layer; 0 leaves the dropout layer out.
    """
    check_sizes(in_channels=in_channels, num_classes=num_classes, image_size=image_size)
    if image_size < 4:
        raise InvalidInputError(f"image_size must be at least 4 to be pooled twice, got {image_size}")
    if not 0.0 <= dropout < 1.0:
        raise InvalidInputError(f"dropout must lie in [0, 1), got {dropout}")
    return nn.Sequential(
        *_convolve(in_channels, 32),
        *_convolve(32, 64),
        nn.Flatten(),
        nn.Linear(64 * (image_size // 4) ** 2, 128),
        nn.ReLU(),
        *([nn.Dropout(dropout)] if dropout else []),
        nn.Linear(128, num_classes),
    )


def _convolve(in_channels: int, out_channels: int) -> list[nn.Module]:
    """Pooled before the ReLU: the same function, as both are monotone, and a quarter of the work for the ReLU."""
    return [nn.Conv2d(in_channels, out_channels, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()]
