"""Methods and contexts as people write them: `ensemble:fsvi (kmnist)` is an FSVI ensemble with context KMNIST."""

from __future__ import annotations

from fsvi.methods.registry import method_title

_DATASETS = {
    "mnist": "MNIST",
    "notmnist": "notMNIST",
    "kmnist": "KMNIST",
    "fashion-mnist": "FashionMNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "svhn": "SVHN",
    "test": "test set",
    "in_domain": "in domain",
}


def split_label(label: str) -> tuple[str, str | None]:
    """Method and context of a result's label, as people write them."""
    method, _, context = label.removesuffix(")").partition(" (")
    return method_name(method), dataset_name(context) if context else None


def full_name(label: str) -> str:
    """Method and context in one line."""
    method, context = split_label(label)
    return method if context is None else f"{method} ({context})"


def method_name(method: str) -> str:
    """A method's name for people."""
    return method_title(method)


def dataset_name(name: str) -> str:
    """A dataset's or a context's name for people."""
    return _DATASETS.get(name, name)
