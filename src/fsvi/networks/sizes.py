"""The check that every network makes of its sizes."""

from fsvi.errors import InvalidInputError


def check_sizes(**sizes: int) -> None:
    """Raise an `InvalidInputError` that names the first size which is not a positive whole number."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise InvalidInputError(f"{name} must be a positive integer, got {size!r}")
