"""What `fsvi tune` searches: for each method, which settings, and which values they may have."""

from __future__ import annotations

from fsvi.methods.registry import METHODS
from fsvi.methods.search_space import VARIANCE, Choice, Range, Space

__all__ = ["LENGTH", "LENGTHS", "SMALL_SPACES", "SPACES", "VARIANCE", "Choice", "Range", "Space"]

LENGTH = "length"
"""The length of training as a multiple of the recipe's: not an argument of any method."""
SPACES: dict[str, Space] = {name: entry.search for name, entry in METHODS.items() if entry.search}
"""What is searched for each method, in addition to the recipe's own value."""
SMALL_SPACES: dict[str, Space] = {name: entry.small_search for name, entry in METHODS.items() if entry.small_search}
"""What is searched instead, or as well, where networks are so small that seeds are trained together."""
LENGTHS = Choice((0.25, 0.5, 1.0, 2.0))
"""How many times as long as in the recipe such a network may be trained."""
