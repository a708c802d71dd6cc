"""The paper's convolutional network for small images."""

from torch import nn

from fsvi.validation import check_count, check_fraction


def cnn(in_channels: int = 1, num_classes: int = 10, image_size: int = 28, dropout: float = 0.0) -> nn.Sequential:
    """Two 3×3 convolutions (32 and 64 channels), each pooled by 2, a dense layer of 128 and a linear head.

    Args:
        in_channels: Channels of an image.
        num_classes: Number of outputs.
        image_size: Height and width of an image, at least 4.
        dropout: Probability of dropping a unit of the dense layer; 0 leaves the dropout layer out.
    """
    check_count("in_channels", in_channels)
    check_count("num_classes", num_classes)
    check_count("image_size", image_size, least=4)  # it is pooled twice
    check_fraction("dropout", dropout)
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
    """A convolution, pooled before the ReLU: both are monotone, so the result is the same for a quarter of the work."""
    return [nn.Conv2d(in_channels, out_channels, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()]
