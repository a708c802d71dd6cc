import pytest

from fsvi.errors import InvalidInputError
from paper import data
from paper.data.store import corrupted
from paper.data.store.catalog import ENTRIES, entry_of


def test_released_files_come_before_regenerated_images():
    sources = entry_of("cifar10-c/fog/3").splits["test"]
    notes = [bool(source.note) for source in sources]
    assert notes == sorted(notes) and not notes[0] and notes[-1]
    assert len(sources) == 3 + len(ENTRIES["cifar10"].splits["test"])


@pytest.mark.parametrize("kind", corrupted.RELEASED_ONLY)
def test_two_kinds_are_never_regenerated(kind):
    assert not any(source.note for source in entry_of(f"cifar10-c/{kind}/1").splits["test"])


def test_the_mixture_has_every_kind_that_can_be_regenerated():
    entry = ENTRIES[corrupted.NAME]
    assert "severity 2" in entry.description
    arrays = next(source for source in entry.splits["test"] if len(source.files) > 2)
    assert [file.name for file in arrays.files] == [f"cifar10-c/{kind}.npy" for kind in (*data.CORRUPTIONS, "labels")]


@pytest.mark.parametrize(
    ("name", "keyword"), [("cifar10-c/fog/0", "severity"), ("cifar10-c/fog", "severity"), ("cifar10-c/fgo/1", "'fog'")]
)
def test_a_name_that_means_nothing(name, keyword):
    with pytest.raises(InvalidInputError, match=keyword):
        entry_of(name)
