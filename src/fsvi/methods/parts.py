"""Parts: objects that several methods share by having them, not by inheritance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from fsvi.networks.network import Network


class Part(nn.Module):
    """A piece of a method with its own parameters and its own share of the method's life.

    A method creates its parts in the constructor, before it calls `build`. `NetworkMethod` then calls their hooks:

    1. `bind` when the network's last layer is known, and again if example inputs show that it is another one;
    2. `begin` when training starts;
    3. `settle` when the parameters have new values that were not learned step by step: from a file or a checkpoint, and
       at the end of training.
    """

    network: Network
    """the method's network; known after `bind`"""

    def bind(self, network: Network) -> None:
        """Make what depends on the network."""
        self.network = network

    def begin(self, x: Tensor) -> None:
        """Training starts; `x` are training inputs, all of them or a sample."""

    def settle(self) -> None:
        """The parameters have new values; make what follows from them."""

    def learning_rates(self) -> Iterator[tuple[nn.Parameter, float]]:
        """Parameters that do not learn at the common rate, each with its factor."""
        yield from ()

    def point_parameters(self) -> list[nn.Parameter]:
        """Weights of the network that the part holds and that are learned as points."""
        return []

    def redundant_names(self) -> set[str]:
        """Tensors of the method's `state_dict` that follow from this part's and are not saved."""
        return set()

    def resize(self, tensors: Mapping[str, Tensor], input_shape: tuple[int, ...] | None) -> None:
        """Give tensors whose size depends on data the sizes that they have in a file, before it is read.

        Args:
            tensors: The part's tensors in the file, by name.
            input_shape: The shape of one input, if it is known.
        """

    def replace(self, name: str, value: Any) -> None:
        """Give a setting another value.

        Args:
            name: The attribute.
            value: The new value, which is checked as in the constructor.
        """
        setattr(self, name, value)

    def fingerprint(self) -> Any:
        """Checksums of the part's own data; None without any."""
        return None


def shared(part: str, name: str) -> Any:
    """A property of a method that lives in one of its parts: `method.name` is `method.part.name`.

    An assignment calls the part's `replace`.

    Args:
        part: The attribute of the method that holds the part.
        name: The attribute of the part.
    """

    def get(method: nn.Module) -> Any:
        return getattr(getattr(method, part), name)

    def set_(method: nn.Module, value: Any) -> None:
        getattr(method, part).replace(name, value)

    return property(get, set_, doc=f"`{name}` of the method's `{part}`.")
