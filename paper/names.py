"""Display names: the label `ensemble:fsvi (kmnist)` is shown as an FSVI ensemble with context KMNIST."""

from __future__ import annotations

from paper.methods import method_title

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


def split_label(label: str) -> tuple[str, str | None]:
    """The display names of the method and the context in a result's label."""
    method, _, context = label.removesuffix(")").partition(" (")
    return method_title(method), dataset_name(context) if context else None


def full_name(label: str) -> str:
    """Method and context in one line."""
    method, context = split_label(label)
    return method if context is None else f"{method} ({context})"


def dataset_name(name: str) -> str:
    """The display name of a dataset or a context."""
    return _DATASETS.get(name, name)
