"""Catalog entries of CIFAR-10-C: the released arrays if they are present, else corrupted CIFAR-10 test images.

`cifar10-c/KIND/SEVERITY` is one corruption at one severity. `cifar10-c` alone is one set of 10,000 images at severity
2, the second mildest, with all kinds applied in turn. `frost` and `spatter` exist only in the released arrays, so they
are not part of that set.
"""

from functools import partial

from fsvi.errors import InvalidInputError
from fsvi.validation import check_choice
from paper.data.corruptions import CORRUPTIONS
from paper.data.readers.cifar_c import read_released, regenerate
from paper.data.store.files import Entry, File, Source

NAME = "cifar10-c"
RELEASED_ONLY = ("frost", "spatter")
"""Kinds that cannot be regenerated."""

_NOTE = "regenerated from the published definitions"
_MIXED_SEVERITY = 2
_RELEASED = File(
    f"{NAME}/CIFAR-10-C.tar",
    "https://zenodo.org/records/2535967/files/CIFAR-10-C.tar",
    "md5:56bf5dcef84df0e2308c6dcbcbbd8499",
)


def corrupted(name: str, clean: Entry) -> Entry:
    """The entry of `cifar10-c` or `cifar10-c/KIND/SEVERITY`.

    Args:
        name: The name.
        clean: The entry of CIFAR-10.
    """
    kinds, severity = _parse(name)
    arrays = tuple(File(f"{NAME}/{kind}.npy") for kind in (*kinds, "labels"))
    released = partial(read_released, kinds=kinds, severity=severity)
    sources = [Source((file,), released) for file in (_RELEASED, File(f"{NAME}/CIFAR-10-C"))]
    sources += [Source(arrays, lambda paths: released([paths[0].parent]))]
    sources += [
        Source(source.files, partial(regenerate, read=source.read, kinds=kinds, severity=severity), _NOTE)
        for source in clean.splits["test"]
        if not set(kinds) & set(RELEASED_ONLY)
    ]
    applied = kinds[0].replace("_", " ") if len(kinds) == 1 else "corruptions in turn"
    return Entry(
        name=name,
        description=f"CIFAR-10 test images with {applied}, severity {severity}",
        license="CC BY 4.0",
        page="https://zenodo.org/records/2535967",
        splits={"test": tuple(sources)},
    )


def _parse(name: str) -> tuple[tuple[str, ...], int]:
    if name == NAME:
        return CORRUPTIONS, _MIXED_SEVERITY
    kind, _, severity = name.removeprefix(f"{NAME}/").partition("/")
    if severity not in set("12345"):
        raise InvalidInputError(f"name={name!r} must end in a severity from 1 to 5, as in '{NAME}/fog/3'.")
    return (check_choice("the corruption", kind, (*CORRUPTIONS, *RELEASED_ONLY)),), int(severity)
