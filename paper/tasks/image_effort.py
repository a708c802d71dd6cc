"""How many images, epochs and draws a profile spends on an image task."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ImageEffort:
    """The effort of a profile.

    Attributes:
        images: The number of training images, taken from the front; None for all.
        test_images: The number of images of each test set, taken from the front; None for all.
        epochs: Passes over the training images.
        num_samples: Draws of the function in prediction.
    """

    images: int | None
    test_images: int | None
    epochs: int
    num_samples: int

    def notes(self) -> list[str]:
        """Says which part of the data was used, if not all."""
        parts = {"training": self.images, "test": self.test_images}
        counts = [f"{number:,} {name} images" for name, number in parts.items() if number is not None]
        return [f"subset: the first {' and '.join(counts)}"] if counts else []
