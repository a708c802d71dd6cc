"""A method on one network: the class that methods derive from."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fsvi.errors import FileFormatError, HeadError
from fsvi.export import Functions, functions_of
from fsvi.inputs import example_shape
from fsvi.likelihoods import Likelihood
from fsvi.methods.base import DataPass, Method
from fsvi.methods.drawing import Draw, evaluate, evaluate_stacked, is_small, parameter_draws
from fsvi.methods.parts import Part
from fsvi.networks.network import Network
from fsvi.validation import check_type

if TYPE_CHECKING:
    from typing_extensions import Self

_OLD_NETWORK_SETTINGS = ("head", "channels_last")
"""Where files written before `Network` existed keep its settings."""


class NetworkMethod(Method):
    """A method on one network. Derive from it to add a method.

    The constructor must end with `self.build(self.network)`.

    Args:
        net: The network; it is copied, and the one passed in never changes.
        likelihood: The distribution of targets given the network's outputs; it is copied.
    """

    net: nn.Module
    network: Network
    likelihood: Likelihood
    num_data: int | None
    progress: float

    def __init__(self, net: nn.Module | Network, likelihood: Likelihood) -> None:
        super().__init__()
        check_type("likelihood", likelihood, Likelihood, "a likelihood such as fsvi.Categorical() or fsvi.Gaussian()")
        self.network = Network.wrap(net).copied()
        self.net = self.network.module
        self.likelihood = copy.deepcopy(likelihood)
        self.num_data = None
        self.progress = 0.0
        self._seen: Any = None
        self._saved_shape: Any = None

    @property
    def parts(self) -> dict[str, Part]:
        """The parts that the method shares with other methods, by attribute name."""
        return {name: child for name, child in self.named_children() if isinstance(child, Part)}

    # The network ----------------------------------------------------------------------------------------------------

    def check_network(self, network: Network) -> None:
        """Refuse a network whose last layer the method cannot work with."""

    def build(self, network: Network) -> None:
        """Make what depends on where the network's last layer is."""
        self.check_network(network)
        self.network = network
        self.likelihood.bind(network.num_outputs)
        for part in self.parts.values():
            part.bind(network)
        for child in (self.likelihood, *self.parts.values()):
            child.to(network.device)

    def see(self, x: Tensor) -> None:
        """Find and check the network's last layer on example inputs; build again if the first guess was wrong."""
        network = self.network.examined(x)
        if network.is_dense and not self.takes_positions:
            raise HeadError(
                f"{type(self).__name__} needs one output vector per input, but the network has outputs at "
                f"{network.layout.positions} positions: use FSVI, MFVI, MAP, MCDropout or SWAG."
            )
        if network.head != self.network.head or _form(network) != _form(self.network):
            self.build(network)
        else:
            self.check_network(network)
            self.network = network
            for part in self.parts.values():
                part.network = network
        self._seen = example_shape(x)

    @property
    def input_shape(self) -> Any:
        """The shape of one input, once the method has seen some; of structured inputs, the shapes by place."""
        return self._saved_shape if self._seen is None else self._seen

    @property
    def seen_shape(self) -> Any:
        """The shape of one input on which the network was checked."""
        return self._seen

    def set_saved_shape(self, shape: Any) -> None:
        """Remember the shape of one input from a file."""
        self._saved_shape = shape

    # Learning -------------------------------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> Self:
        """Training mode; normalization layers whose parameters are all frozen stay in eval mode."""
        super().train(mode)
        if mode:
            self.network.hold_frozen()
        return self

    def begin(self, x: Tensor, num_data: int) -> None:
        """Check the network and the parts on training inputs."""
        self.see(x[:2])
        self.num_data = num_data
        for part in self.parts.values():
            part.begin(x)

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """All learned parameters at `lr`, then the parameters of parts that have their own rates."""
        own = [(p, factor) for part in self.parts.values() for p, factor in part.learning_rates()]
        special = {id(p) for p, _ in own}
        common = [p for p in self.parameters() if p.requires_grad and p.numel() and id(p) not in special]
        return [{"params": common, "lr": lr}, *({"params": [p], "lr": factor * lr} for p, factor in own)]

    def point_parameters(self) -> list[nn.Parameter]:
        """The network's own parameters, and points that the parts hold; those that are not trained do no harm."""
        return [*self.net.parameters(), *(p for part in self.parts.values() for p in part.point_parameters())]

    def finish(self, batches: DataPass) -> None:
        """Let the parts finish, too."""
        for part in self.parts.values():
            part.settle()

    # Prediction -----------------------------------------------------------------------------------------------------

    def batched(self, function: Callable[[Tensor], Tensor], x: Tensor, batch_size: int) -> Tensor:
        """A function of inputs, computed in batches.

        Args:
            function: A function from inputs (n, ...) to a tensor with n rows.
            x: Inputs.
            batch_size: The number of inputs per call.
        """
        return torch.cat([function(chunk) for chunk in self._batches(x, batch_size)])

    def draw_functions(self, draws: Iterable[dict[str, Tensor]], x: Tensor, batch_size: int) -> Tensor:
        """The network's outputs under draws of its parameters, (draws, n, outputs).

        Args:
            draws: Parameters by name, one mapping per draw.
            x: Inputs.
            batch_size: The number of inputs per pass through the network.
        """
        if is_small(self.network):
            return evaluate_stacked(self.network, draws, self._batches(x, batch_size))
        return self.evaluate(parameter_draws(self.network, draws), x, batch_size)

    def evaluate(self, draws: Iterable[Draw], x: Tensor, batch_size: int) -> Tensor:
        """The outputs of draws, (draws, n, outputs); what is computed before the first random layer is shared by all.

        Args:
            draws: The draws.
            x: Inputs.
            batch_size: The number of inputs per pass through the network.
        """
        return evaluate(self.network, draws, self._batches(x, batch_size))

    def _batches(self, x: Tensor, batch_size: int) -> list[Any]:
        return [self.network.arranged(chunk) for chunk in x.split(batch_size)]

    def fixed_functions(self, draws: Iterable[Mapping[str, Tensor]]) -> Functions:
        """The network's outputs under these draws of its parameters, as a function of inputs."""
        return functions_of(self.network, list(draws))

    # Files ----------------------------------------------------------------------------------------------------------

    def config(self) -> dict[str, Any]:
        """The class and its settings, with those of its network."""
        config = super().config()
        config["settings"]["network"] = self.network.settings()
        return config

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], **transient: Any) -> Any:
        """Build a method from the settings in its `config`, on the network `net`."""
        own = {name: value for name, value in settings.items() if name not in ("network", *_OLD_NETWORK_SETTINGS)}
        net = Network.from_settings(settings.get("network", settings), transient.pop("net"))
        return super().from_settings(own, net=net, **transient)

    def description(self) -> dict[str, Any] | None:
        """The network as plain values; None unless it is made of standard layers."""
        return self.network.description()

    def fingerprint(self) -> Any:
        """The checksum of the part that has data of its own, if there is one."""
        return next((found for part in self.parts.values() if (found := part.fingerprint()) is not None), None)

    def redundant_names(self) -> set[str]:
        """The tensors whose values the parts already hold."""
        names: set[str] = set()
        for prefix, part in self.parts.items():
            own = {name for name, _ in part.named_parameters()}
            names |= {f"{prefix}.{name}" if name in own else name for name in part.redundant_names()}
        return names

    def tensors(self) -> dict[str, Tensor]:
        """Everything learned, by name."""
        skip = self.redundant_names()
        return {name: tensor for name, tensor in self.state_dict().items() if name not in skip}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Load what `tensors` returned in this or another process; an error changes nothing."""
        before = {
            f"{prefix}.{name}": buffer.clone()
            for prefix, part in self.parts.items()
            for name, buffer in part.named_buffers()
        }
        self._resize(tensors)
        own = self.tensors()
        if own.keys() != tensors.keys() or any(own[name].shape != tensors[name].shape for name in own):
            odd = sorted(n for n in own.keys() | tensors.keys() if _shape(own, n) != _shape(tensors, n))
            self._resize(before)
            _copy(before, {name: buffer for name, buffer in self.named_buffers() if name in before})
            raise FileFormatError(f"the file does not fit this network: {', '.join(odd[:3])} differ.")
        _copy(tensors, own)
        for part in self.parts.values():
            part.settle()

    def _resize(self, tensors: Mapping[str, Tensor]) -> None:
        for prefix, part in self.parts.items():
            start = f"{prefix}."
            own = {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}
            part.resize(own, self.input_shape)


def _form(network: Network) -> tuple[int, bool, int]:
    """What parts of a method rely on besides the head; the number of positions may change."""
    return network.layout.axis, network.layout.is_moved, len(network.layout.positions)


@torch.no_grad()
def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    for name, tensor in target.items():
        tensor.copy_(source[name])


def _shape(tensors: Mapping[str, Tensor], name: str) -> torch.Size | None:
    return tensors[name].shape if name in tensors else None
