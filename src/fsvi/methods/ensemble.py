"""Deep ensembles (Lakshminarayanan, Pritzel, Blundell; NeurIPS 2017)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.optim import Optimizer

from fsvi.errors import InvalidInputError
from fsvi.export import Functions
from fsvi.inputs import example_shape
from fsvi.likelihoods import Likelihood, Predictive, mixture
from fsvi.methods.base import DataPass, Method
from fsvi.methods.map import MAP
from fsvi.networks.network import Network
from fsvi.networks.parameters import is_dense
from fsvi.serialization import Configurable
from fsvi.validation import check_count, check_type

_RANDOM_LAYERS = (nn.modules.dropout._DropoutNd, nn.RReLU)


class Ensemble(Method):
    """Minimizes Σᵢ Lᵢ, the sum of its members' losses, and predicts with the mixture 1/M Σᵢ pᵢ(y|x).

    The members differ in their initial parameters and in what is random in their training. They see the same
    minibatches and do not interact. `Ensemble.of` joins members that were trained one by one.

    A prediction from `num_samples` draws takes an equal share of them from every member, rounded up. Members that are
    `MAP`s of plain dense networks are trained together by `torch.vmap`, which is faster and equal up to rounding.

    Args:
        make: A function that builds one member with its own network, such as `lambda: fsvi.MAP(net(), likelihood)`.
        size: The number of members.
    """

    def __init__(self, make: Callable[[], Method], size: int = 5) -> None:
        if isinstance(make, nn.Module) or not callable(make):
            raise InvalidInputError(f"make is a {type(make).__name__}, not a function that builds a member.")
        super().__init__()
        self._members = nn.ModuleList(_checked(make()) for _ in range(check_count("size", size)))
        self._check_alike()
        self._is_vectorized = False
        self._seen: Any = None

    @classmethod
    def of(cls, members: Sequence[Method]) -> Ensemble:
        """The ensemble of these methods, trained or not: `Ensemble.of([fsvi.load(path, net) for path in paths])`."""
        return cls(iter(members).__next__, len(members))

    @property
    def members(self) -> list[Method]:
        """The methods it consists of."""
        return list(self._members)  # type: ignore[arg-type]

    # Learning -------------------------------------------------------------------------------------------------------

    def terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """The members' terms, each summed over members."""
        if self._is_vectorized:
            return self._vectorized_terms(x, y)
        return _total([member.terms(x, y) for member in self.members])

    def backward(self, x: Tensor, y: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        """The terms, with every member's gradient added to its own parameters."""
        if self._is_vectorized:
            return super().backward(x, y, scale)
        return _total([member.backward(x, y, scale) for member in self.members])

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """The members' groups."""
        return [group for member in self.members for group in member.parameter_groups(lr)]

    def point_parameters(self) -> list[nn.Parameter]:
        """The members'."""
        return [p for member in self.members for p in member.point_parameters()]

    def learners(self) -> list[Method]:
        """The members, which do not interact."""
        return [learner for member in self.members for learner in member.learners()]

    def own_optimizer(self, lr: float) -> Optimizer | None:
        """The members' own optimizers as one, if they have any."""
        parts = [member.own_optimizer(lr) for member in self.members]
        own = [part for part in parts if part is not None]
        return JointOptimizer(own) if own else None

    def begin(self, x: Tensor, num_data: int) -> None:
        """Training starts for every member."""
        self._check_distinct()
        self._seen = example_shape(x)
        for member in self.members:
            member.begin(x, num_data)
        self._is_vectorized = self._can_be_vectorized()

    def fit_prior(self, x: Tensor, y: Tensor) -> None:
        """Every member fits its prior."""
        for member in self.members:
            member.fit_prior(x, y)

    def step_sums(self) -> list[Tensor]:
        """The members'."""
        return [tensor for member in self.members for tensor in member.step_sums()]

    def set_by_first_batch(self) -> list[Tensor]:
        """The members'."""
        return [tensor for member in self.members for tensor in member.set_by_first_batch()]

    def after_step(self) -> None:
        """Every member has made a step."""
        for member in self.members:
            member.after_step()

    def after_epoch(self, batches: DataPass) -> None:
        """An epoch has ended for every member."""
        for member in self.members:
            member.after_epoch(batches)

    def end_task(self, x: Tensor, seed: int = 0) -> None:
        """A task of a sequence has ended for every member."""
        for member in self.members:
            member.end_task(x, seed)

    def finish(self, batches: DataPass) -> None:
        """Training has ended for every member."""
        for member in self.members:
            member.finish(batches)

    def _can_be_vectorized(self) -> bool:
        """Whether one pass can serve all members: `MAP`s with the same settings of a network without randomness."""
        first, *others = self.members
        if not others or any(type(member) is not MAP for member in self.members):
            return False
        plain = is_dense(first.net) and not any(isinstance(module, _RANDOM_LAYERS) for module in first.net.modules())
        return plain and all(_settings(member) == _settings(first) for member in others)

    def _vectorized_terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        members: list[MAP] = self.members  # type: ignore[assignment]
        nets = [dict(member.net.named_parameters()) for member in members]
        stacked = {name: torch.stack([parameters[name] for parameters in nets]) for name in nets[0]}
        outputs = vmap(lambda parameters: members[0].network(x, parameters))(stacked)
        nlls = [member.likelihood.nll(f, y) for member, f in zip(members, outputs, strict=True)]
        return {"nll": torch.stack(nlls).sum(), **members[0].prior_terms(stacked, len(x))}

    # Prediction -----------------------------------------------------------------------------------------------------

    def function_draws(self, x: Tensor, num_samples: int, generator: torch.Generator, batch_size: int) -> Tensor:
        """The draws of all members, member by member, with the same number from each."""
        share = math.ceil(num_samples / len(self.members))
        return torch.cat([member.function_draws(x, share, generator, batch_size) for member in self.members])

    def fixed_draws(self, x: Any, num_samples: int, generator: torch.Generator) -> Functions:
        """The draws of all members, member by member."""
        share = math.ceil(num_samples / len(self.members))
        parts = [member.fixed_draws(x, share, generator) for member in self.members]
        return lambda x: torch.cat([part(x) for part in parts])

    def predictive(self, f: Tensor) -> Predictive:
        """The mixture of the members' predictives, each with its own likelihood."""
        parts = f.chunk(len(self.members))
        return mixture([member.predictive(part) for member, part in zip(self.members, parts, strict=True)])

    # The protocol: the first member speaks for all ------------------------------------------------------------------

    @property
    def net(self) -> nn.Module:
        """The first member's module."""
        return self.members[0].net

    @property
    def likelihood(self) -> Likelihood:
        """The first member's likelihood."""
        return self.members[0].likelihood

    @property
    def network(self) -> Network:
        """The first member's network."""
        return self.members[0].network

    @property
    def input_shape(self) -> Any:
        """The shape of one input, once the ensemble or its first member has seen some, now or before it was saved."""
        return self.members[0].input_shape if self._seen is None else self._seen

    @property
    def seen_shape(self) -> Any:
        """The shape of one input on which all members were checked."""
        return self._seen

    def set_saved_shape(self, shape: Any) -> None:
        """Remember the shape of one input from a file."""
        for member in self.members:
            member.set_saved_shape(shape)

    @property
    def num_data(self) -> int | None:
        """The number of training examples; `fit` sets it."""
        return self.members[0].num_data

    @num_data.setter
    def num_data(self, value: int | None) -> None:
        for member in self.members:
            member.num_data = value

    @property
    def progress(self) -> float:
        """The share of training that is done."""
        return self.members[0].progress

    @progress.setter
    def progress(self, value: float) -> None:
        for member in self.members:
            member.progress = value

    def see(self, x: Tensor) -> None:
        """Let every member check its network on example inputs."""
        for member in self.members:
            member.see(x)
        self._seen = example_shape(x)

    # Files ----------------------------------------------------------------------------------------------------------

    def description(self) -> dict[str, Any] | None:
        """The network that all members have in common; None where they differ or cannot be described."""
        first, *others = [member.description() for member in self.members]
        return first if all(other == first for other in others) else None

    def config(self) -> dict[str, Any]:
        """The members' classes and settings."""
        return {"class": self.class_name(), "settings": {"members": [member.config() for member in self.members]}}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], **transient: Any) -> Ensemble:
        """Build the members from their settings."""
        return cls.of([Configurable.from_config(config, **transient) for config in settings["members"]])

    def fingerprint(self) -> list[Any]:
        """The members' checksums."""
        return [member.fingerprint() for member in self.members]

    def redundant_names(self) -> set[str]:
        """The members'."""
        members = enumerate(self.members)
        return {f"_members.{index}.{name}" for index, member in members for name in member.redundant_names()}

    def tensors(self) -> dict[str, Tensor]:
        """Everything that the members have learned."""
        parts = enumerate(member.tensors() for member in self.members)
        return {f"{index}.{name}": tensor for index, part in parts for name, tensor in part.items()}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Give each member its own tensors."""
        for index, member in enumerate(self.members):
            prefix = f"{index}."
            part = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
            member.load_tensors(part)

    # Checks ---------------------------------------------------------------------------------------------------------

    def _check_alike(self) -> None:
        first, *others = self.members
        for index, member in enumerate(others, start=1):
            if type(member) is not type(first):
                kinds = f"a {type(first).__name__} and a {type(member).__name__}"
                raise InvalidInputError(f"members 0 and {index} are {kinds}: an ensemble's members are of one class.")
            if member.network.architecture() != first.network.architecture():
                raise InvalidInputError(f"the networks of members 0 and {index} differ: all need one architecture.")

    def _check_distinct(self) -> None:
        for (i, one), (j, other) in combinations(enumerate(self.members), 2):
            if all(torch.equal(p, q) for p, q in zip(one.net.parameters(), other.net.parameters(), strict=True)):
                raise InvalidInputError(
                    f"members {i} and {j} start from the same parameters: let `make` build a new network each time."
                )


def _checked(member: Method) -> Method:
    check_type("make()", member, Method, "a method such as fsvi.MAP(net(), likelihood=...)")
    return member


def _settings(member: Method) -> tuple[Any, ...]:
    trainable = [p.requires_grad for p in member.net.parameters()]
    return member.config(), trainable


def _total(terms: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The sum of each term over members."""
    return {name: torch.stack([each[name] for each in terms]).sum() for name in terms[0]}


class JointOptimizer(Optimizer):
    """Several optimizers as one, each with its own rule for its own parameters.

    Args:
        parts: The optimizers; they have no parameter in common.
    """

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        self._parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._share()

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Every part makes a step."""
        for part in self._parts:
            part.step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the state of all parts."""
        super().load_state_dict(state_dict)
        self._share()

    def _share(self) -> None:
        """One state and one list of groups for all: parts have no parameter in common."""
        groups = iter(self.param_groups)
        for part in self._parts:
            part.state = self.state
            part.param_groups = [next(groups) for _ in part.param_groups]
