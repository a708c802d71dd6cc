"""Toy data, and texts as numbers.

Examples:
    >>> x, y = fsvi.data.two_moons(200, noise=0.2, seed=0)
    >>> words = fsvi.data.Vocabulary.of(["a fine film", "a dull film"])
    >>> words.encode(["a fine plot"])["input_ids"].shape
    torch.Size([1, 3])
"""

from fsvi.data.toy import snelson, two_moons
from fsvi.data.words import Vocabulary

__all__ = ["Vocabulary", "snelson", "two_moons"]
