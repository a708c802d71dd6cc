"""Deep ensembles (Lakshminarayanan, Pritzel, Blundell; NeurIPS 2017)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fsvi.errors import InvalidInputError
from fsvi.likelihoods import Predictive, mixture
from fsvi.methods.base import Composite, Functions, Method
from fsvi.serialization import Configurable, name_in_files
from fsvi.validation import check_count, check_type


class Ensemble(Composite):
    """Minimizes Σᵢ Lᵢ, the sum of its members' losses, and predicts with the mixture 1/M Σᵢ pᵢ(y|x).

    The members differ in their initial parameters and in what is random in their training. They see the same
    minibatches and do not interact. `Ensemble.of` joins members that were trained one by one.

    A prediction from `num_samples` draws takes an equal share of them from every member, rounded up.

    Args:
        make: A function that builds one member with its own network, such as `lambda: fsvi.MAP(net(), likelihood)`.
        size: The number of members.

    Examples:
        >>> make = lambda: fsvi.MAP(fsvi.networks.mlp(2, (20,), 2), fsvi.Categorical())
        >>> method = fsvi.Ensemble(make, size=3)
        >>> history = fsvi.fit(method, fsvi.data.two_moons(100, noise=0.1, seed=0), epochs=5, seed=0)
    """

    def __init__(self, make: Callable[[], Method], size: int = 5) -> None:
        if isinstance(make, nn.Module) or not callable(make):
            raise InvalidInputError(f"make is a {type(make).__name__}, not a function that builds a member.")
        nn.Module.__init__(self)
        members = [make() for _ in range(check_count("size", size))]
        for member in members:
            check_type("make()", member, Method, "a method such as fsvi.MAP(net(), likelihood=...)")
        if len({len(member.learners()) for member in members}) > 1:
            raise InvalidInputError("the members are ensembles of different sizes: all need one size.")
        self.members = nn.ModuleList(members)
        first, *others = self.learners()
        self.input_shape = first.input_shape
        for index, member in enumerate(others, start=1):
            if type(member) is not type(first):
                kinds = f"a {type(first).__name__} and a {type(member).__name__}"
                raise InvalidInputError(f"members 0 and {index} are {kinds}: an ensemble's members are of one class.")
            if member.network.architecture() != first.network.architecture():
                raise InvalidInputError(f"the networks of members 0 and {index} differ: all need one architecture.")

    @classmethod
    def of(cls, members: Sequence[Method]) -> Ensemble:
        """The ensemble of these methods, trained or not: `Ensemble.of([fsvi.load(path, net) for path in paths])`.

        Args:
            members: The methods.
        """
        return cls(iter(members).__next__, len(members))

    def learners(self) -> list[Method]:
        """The members, which do not interact, or what learns in them if they are ensembles or calibrated."""
        return [learner for member in self._each() for learner in member.learners()]

    def _each(self) -> list[Method]:
        return list(self.members)  # type: ignore[arg-type]

    def forward(self, x: Any, y: Tensor) -> dict[str, Tensor]:
        """The members' terms, each summed over members."""
        terms = [member.forward(x, y) for member in self.learners()]
        return {name: torch.stack([each[name] for each in terms]).sum() for name in terms[0]}

    def own_optimizer(self, lr: float) -> Optimizer | None:
        """The optimizer of all members if their update rule is part of them. They must not start alike."""
        for (i, one), (j, other) in combinations(enumerate(self.learners()), 2):
            if all(torch.equal(p, q) for p, q in zip(one.net.parameters(), other.net.parameters(), strict=True)):
                raise InvalidInputError(
                    f"members {i} and {j} start from the same parameters: let `make` build a new network each time."
                )
        return super().own_optimizer(lr)

    def functions(self, num_samples: int, generator: torch.Generator) -> Functions:
        """The draws of all members, member by member, with the same number from each."""
        share = math.ceil(num_samples / len(self.members))
        parts = [member.functions(share, generator) for member in self._each()]
        return lambda x: torch.cat([part(x) for part in parts])

    def _values(self, x: Any, num_samples: int, generator: torch.Generator, batch_size: int) -> Tensor:
        share = math.ceil(num_samples / len(self.members))
        return torch.cat([member._values(x, share, generator, batch_size) for member in self._each()])

    def predictive(self, f: Tensor) -> Predictive:
        """The mixture of the members' predictives, each with its own likelihood."""
        parts = f.chunk(len(self.members))
        return mixture([member.predictive(part) for member, part in zip(self._each(), parts, strict=True)])

    def config(self) -> dict[str, Any]:
        """The members' classes and settings."""
        return {
            "class": name_in_files(type(self)),
            "settings": {"members": [member.config() for member in self._each()]},
        }

    @classmethod
    def _from_settings(cls, settings: Mapping[str, Any], **transient: Any) -> Ensemble:
        """Build the members from their settings."""
        return cls.of([Configurable.from_config(config, **transient) for config in settings["members"]])
