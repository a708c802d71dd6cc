"""Contexts of the image tasks by name, and checks that they hold no test images."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence

from fsvi.errors import InvalidInputError
from fsvi.functions import contexts
from fsvi.validation import check_choice
from paper import data
from paper.data import DataSplit, Normalize
from paper.data.catalog import Split, entry_of

GENERATED: dict[str, Callable[[], contexts.Context]] = {
    "monochrome": lambda: _half_batch(contexts.Monochrome()),
    "batch": contexts.Batch,
    "corrupted": contexts.Corrupted,
}
"""Contexts that are generated from the training images."""


def make_context(
    name: str | None, normalize: Normalize, ood: Sequence[str]
) -> tuple[contexts.Context | None, list[DataSplit]]:
    """A context and the data it was made from; None for a method without a context.

    In a dataset context and in the monochrome context, half of the points come from the minibatch.

    A dataset in `ood`, the test sets of out-of-distribution detection, is refused: images seen in training cannot test
    detection.
    """
    if name is None:
        return None, []
    if name in ood:
        raise InvalidInputError(
            f"context {name!r} is also a test set of this task, so its results would be meaningless: "
            f"choose another context, such as {next(iter(GENERATED))!r}."
        )
    if name in GENERATED:
        return GENERATED[name](), []
    check_choice("context", name, [*GENERATED, *(each for each in data.names() if each not in ood)])
    source = data.load(name, _context_split(name))
    try:
        points = normalize(source.x)
    except InvalidInputError as error:
        raise InvalidInputError(f"context {name!r} does not fit this task: {error}") from error
    return _half_batch(contexts.Dataset(points)), [source]


def context_notes(name: str | None) -> list[str]:
    """Notes for readers about the context called `name`."""
    is_mixed = name is not None and (name not in GENERATED or isinstance(GENERATED[name](), contexts.Mixture))
    return ["half of the context points are from the minibatch"] if is_mixed else []


def check_unseen(tests: Iterable[DataSplit], context: Iterable[DataSplit]) -> None:
    """Refuse test images that are also in the context, under any name of their dataset."""
    seen = {image for each in context for image in _digests(each)}
    for test in tests if seen else ():
        shared = sum(image in seen for image in _digests(test))
        if shared:
            raise InvalidInputError(
                f"{shared:,} test images of {test.name} are also context points, so its results would be meaningless: "
                f"choose another context, such as {next(iter(GENERATED))!r}, or check the files in the data folders."
            )


def _digests(split: DataSplit) -> Iterator[bytes]:
    """A hash of each image, which takes less memory than the images."""
    return (hashlib.blake2b(image.tobytes(), digest_size=16).digest() for image in split.x.numpy())


def _context_split(name: str) -> Split:
    """The training split, unless there is none or only the test split is available locally."""
    has_train = "train" in entry_of(name).splits
    only_test = data.available(name, "test") and not data.available(name, "train")
    return "train" if has_train and not only_test else "test"


def _half_batch(other: contexts.Context) -> contexts.Context:
    """Half of the points come from the minibatch. There the prior bounds the logits of the data, too, which keeps a
    classifier calibrated late in training."""
    return contexts.Mixture([contexts.Batch(), other], [0.5, 0.5])
