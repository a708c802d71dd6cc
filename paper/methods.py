"""Display names of methods and datasets: `ensemble:fsvi (kmnist)` is shown as "FSVI ensemble (KMNIST)"."""

from __future__ import annotations

REFINED = "fsvi-refined"
"""FSVI whose mean stays fixed while a second, short training learns the variance."""
TITLES = {
    "map": "MAP",
    "mfvi": "MFVI",
    "mfvi-tempered": "MFVI tempered",
    "mfvi-radial": "MFVI radial",
    "mc-dropout": "MC dropout",
    "swag": "SWAG",
    "duq": "DUQ",
    "laplace": "Laplace",
    "vogn": "VOGN",
    "ivon": "IVON",
    "rank1": "Rank-1",
    "vbll": "VBLL",
    "spg": "SPG",
    "fbnn": "fBNN",
    "fs-eb": "FS-EB",
    "gfsvi": "GFSVI",
    "fsvi": "FSVI",
    "s-fsvi": "S-FSVI",
    "fmgp": "FMGP",
    "sngp": "SNGP",
    "fsvi-fixed-mean": "FSVI, fixed mean",
    REFINED: "FSVI, then fixed mean",
    "fsvi-random-features": "FSVI, random features",
    "temperature": "Temperature",
    "energy": "Energy score",
    "mahalanobis": "Mahalanobis distance",
    "knn": "Nearest neighbors",
}
_DATASETS = {
    "mnist": "MNIST",
    "notmnist": "notMNIST",
    "kmnist": "KMNIST",
    "fashion-mnist": "FashionMNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "svhn": "SVHN",
    "imdb": "IMDB",
    "rotten-tomatoes": "Rotten Tomatoes",
    "test": "test set",
    "in_domain": "in domain",
}


def library_name(method: str) -> str:
    """The name by which `fsvi.make_method` knows a method."""
    return method.replace(REFINED, "fsvi-fixed-mean")


def method_title(name: str) -> str:
    """A method's name in tables and figures: "MAP", "Deep ensemble", "FSVI ensemble"; or just `name`."""
    member = name.removeprefix("ensemble:")
    title = TITLES.get(member, member)
    if name == member:
        return title
    return "Deep ensemble" if member == "map" else f"{title} ensemble"


def full_name(label: str) -> str:
    """Method and context of a result's label in one line."""
    method, context = split_label(label)
    return f"{method_title(method)} ({dataset_name(context)})" if context else method_title(method)


def split_label(label: str) -> tuple[str, str | None]:
    """The method and the context of a label such as "fsvi (kmnist)"."""
    method, _, context = label.removesuffix(")").partition(" (")
    return method, context or None


def dataset_name(name: str) -> str:
    """The display name of a dataset or a context."""
    return _DATASETS.get(name, name)
