"""The protocol that every inference method follows.

A method owns a copy of the user's network and a likelihood. Training needs `terms`, the named parts of the loss;
prediction needs `function_draws`. The rest has defaults: `parameter_groups` says what the optimiser trains and how
fast, the hooks `begin`, `fit_prior`, `after_step`, `after_epoch` and `finish` are for methods that watch training,
`backward` and `own_optimizer` for methods whose update is their own, `check_network` for methods that ask something of
the network's last layer.
"""

from __future__ import annotations

import copy
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from fsvi.errors import FileFormatError, InvalidInputError
from fsvi.likelihoods import Likelihood
from fsvi.networks.description import build
from fsvi.networks.modes import evaluating
from fsvi.networks.network import Network
from fsvi.predictive import Predictive
from fsvi.serialization import Configurable, building_from, read_tree, write_tree
from fsvi.validation import as_tensor, check_count, check_inputs, check_type

if TYPE_CHECKING:
    from typing_extensions import Self

_KIND = "fsvi method"
_OLD_NETWORK_SETTINGS = ("head", "channels_last")
"""Where files written before `Network` existed keep its settings."""


class Method(Configurable, nn.Module, ABC):
    """An inference method on a network: what `fit` trains and what predicts.

    `net` is copied; the one passed in never changes. Constructor arguments are kept under their own names, so that
    `save` can write them down.
    """

    transient = ("net",)
    takes_weights: ClassVar[bool] = True
    """Whether training can weigh examples: whether all that it takes from targets is `likelihood.nll`"""
    likelihood: Likelihood
    network: Network
    num_data: int | None
    """how many examples there are, or the sum of their weights, once `fit` has said so"""
    progress: float
    """how much of training is done when the step that `fit` is making is, 0..1"""
    _saved_shape: torch.Size | None = None

    def __init__(self, net: nn.Module | Network, likelihood: Likelihood) -> None:
        super().__init__()
        check_type("likelihood", likelihood, Likelihood, "a likelihood such as fsvi.Categorical() or fsvi.Gaussian()")
        self.network = Network.wrap(net).copied()
        self.net = self.network.module
        self.likelihood = copy.deepcopy(likelihood)
        self.num_data = None
        self.progress = 0.0
        self._seen: torch.Size | None = None

    # Learning -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """The named scalars whose sum is the loss on a minibatch: the negative log-likelihood `nll`, and others."""

    def loss(self, x: Any, y: Any) -> Tensor:
        """The scalar to minimise. The data's size is what `fit` said, else the batch's."""
        x, y = self.check_batch(x, y)
        return sum_terms(self.terms(x, y))

    def backward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """The terms of the loss on a checked minibatch, its gradient added to the parameters' `grad`."""
        terms = self.terms(x, y)
        sum_terms(terms).backward()
        return terms

    def train(self, mode: bool = True) -> Self:
        """Training mode; normalization layers whose parameters are all frozen stay in eval mode."""
        super().train(mode)
        if mode:
            self.network.hold_frozen()
        return self

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """What the optimiser trains, with each group's learning rate."""
        return [{"params": [p for p in self.parameters() if p.requires_grad], "lr": lr}]

    def own_optimizer(self, lr: float) -> torch.optim.Optimizer | None:
        """The optimiser of a method whose update rule is part of it; None lets the user choose."""
        return None

    def begin(self, x: Tensor, num_data: int) -> None:
        """Training starts: `x` are training inputs (all of them, or a sample), of `num_data`."""
        self.see(x[:2])
        self.num_data = num_data

    def fit_prior(self, x: Tensor, y: Tensor) -> None:
        """Fit the prior first, before the first epoch: `x` and `y` are training examples, all of them or a sample."""

    def after_step(self) -> None:
        """The optimiser has made a step."""

    def after_epoch(self, batches: Callable[[], Iterable[tuple[Tensor, Tensor]]]) -> None:
        """An epoch has ended; `batches()` goes through the training data once more."""

    def finish(self, batches: Callable[[], Iterable[tuple[Tensor, Tensor]]]) -> None:
        """Training has ended; `batches()` goes through the training data once more."""

    # Prediction -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def function_draws(self, x: Tensor, num_samples: int, generator: torch.Generator, batch_size: int) -> Tensor:
        """The network's outputs for draws of the function, (samples, n, outputs), in eval mode without gradients."""

    def predict(self, x: Any, num_samples: int = 100, seed: int = 0, batch_size: int = 512) -> Predictive:
        """The predictive distribution at `x`: the same draws for every input, and for every call with one `seed`."""
        check_count("num_samples", num_samples)
        check_count("batch_size", batch_size)
        x = check_inputs(x, self.dtype)
        if x.shape[1:] != self._seen:
            self.see(x[:2])
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad(), evaluating(self.net):
            return self.predictive(self.function_draws(x, num_samples, generator, batch_size))

    def predictive(self, f: Tensor) -> Predictive:
        """The predictive distribution of function draws `f` (samples, n, outputs)."""
        return self.likelihood.predictive(f)

    def batched(self, function: Callable[[Tensor], Tensor], x: Tensor, batch_size: int) -> Tensor:
        """`function` of `x`, computed `batch_size` inputs at a time."""
        return torch.cat([function(self.network.arranged(chunk)) for chunk in x.split(batch_size)])

    def draw_functions(self, draws: Iterable[dict[str, Tensor]], x: Tensor, batch_size: int) -> Tensor:
        """The network's outputs under each of these `draws` of its parameters, (draws, n, outputs)."""
        calls = (lambda inputs, params=params: self.network(inputs, params) for params in draws)
        return torch.stack([self.batched(call, x, batch_size) for call in calls])

    # What both need -------------------------------------------------------------------------------------------------

    @property
    def dtype(self) -> torch.dtype:
        """The floating type of the network's parameters."""
        return self.network.dtype

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.network.device

    @property
    def num_outputs(self) -> int:
        """How many outputs the network has."""
        return self.network.num_outputs

    @property
    def input_shape(self) -> tuple[int, ...] | None:
        """The shape of one input, once the method has seen some, here or before it was saved."""
        return self._saved_shape if self._seen is None else self._seen

    def check_batch(self, x: Any, y: Any) -> tuple[Tensor, Tensor]:
        """Inputs and targets, validated, on the method's device."""
        x = check_inputs(x, self.dtype)
        y = as_tensor("y", y)
        if y.dim() == 0 or len(x) != len(y):
            raise InvalidInputError(f"there are {len(x)} inputs, but targets of shape {tuple(y.shape)}.")
        if x.shape[1:] != self._seen:
            self.see(x[:2])
        y = self.likelihood.check_targets(y, self.num_outputs)
        return self.network.arranged(x), (y.to(self.dtype) if y.is_floating_point() else y).to(self.device)

    def check_network(self, network: Network) -> None:
        """Refuse a network whose last layer the method cannot work with."""

    def build(self, network: Network) -> None:
        """Make what depends on where the network's last layer is."""
        self.check_network(network)
        self.network = network
        self.likelihood.bind(network.num_outputs)

    def see(self, x: Tensor) -> None:
        """Find and check the network's last layer on example inputs; build again if the first guess was wrong."""
        network = self.network.examined(x)
        if network.head != self.network.head:
            self.build(network)
        else:
            self.check_network(network)
            self.network = network
        self._seen = x.shape[1:]

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

    def fingerprint(self) -> Any:
        """Checksums of the data that a method trains on besides those that `fit` is given; None without any."""
        return None

    def redundant_names(self) -> set[str]:
        """Tensors of `state_dict` that follow from others and are not saved."""
        return set()

    def tensors(self) -> dict[str, Tensor]:
        """Everything learned, by name."""
        skip = self.redundant_names()
        return {name: tensor for name, tensor in self.state_dict().items() if name not in skip}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Take over what `tensors` returned, here or in another process."""
        own = self.tensors()
        if own.keys() != tensors.keys() or any(own[name].shape != tensors[name].shape for name in own):
            odd = sorted(n for n in own.keys() | tensors.keys() if _shape(own, n) != _shape(tensors, n))
            raise FileFormatError(f"the file does not fit this network: {', '.join(odd[:3])} differ.")
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(tensors[name])

    def save(self, path: str | os.PathLike[str], calibrated: Configurable | None = None) -> None:
        """Write the trained method to one file, without pickle and without training data; see `fsvi.load`.

        `calibrated` is a `fsvi.calibration.Calibrated` of this method, which `load` then returns.
        """
        extra = {} if calibrated is None else {"calibrated": calibrated.config()}
        write_tree(path, {**self.as_tree(), **extra}, _KIND)

    def as_tree(self) -> dict[str, Any]:
        """The trained method as plain values and tensors; see `from_tree`."""
        return {
            "config": self.config(),
            "parameters": self.network.architecture(),
            "network": self._described(),
            "input_shape": self.input_shape,
            "num_data": self.num_data,
            "tensors": self.tensors(),
        }

    def _described(self) -> dict[str, Any] | None:
        """The network that this method and its members, if it has any, have in common."""
        first, *others = [part.network.description() for part in self.modules() if isinstance(part, Method)]
        return first if all(other == first for other in others) else None


def load(path: str | os.PathLike[str], net: nn.Module | Network | None = None) -> Any:
    """Read a method that `save` wrote, with its calibration if it was saved with one.

    A file describes networks that are an `nn.Sequential` of PyTorch's common layers, nested or not, and those of
    `fsvi.networks`. For any other, `net` gives the architecture; its parameters' values do not matter.
    """
    return from_tree(read_tree(path, _KIND), path, net)


def from_tree(tree: dict[str, Any], path: str | os.PathLike[str], net: nn.Module | Network | None = None) -> Any:
    """The method that `Method.as_tree` described, read from the file at `path`, which errors name."""
    with building_from(path):
        is_described = net is None
        net = _network(path, tree) if net is None else net
        for saved, given in zip_longest(tree["parameters"], Network.wrap(net).architecture()):
            if saved != given:
                raise FileFormatError(f"{path} is of another architecture: it has {saved}, the network given {given}.")
        method = Configurable.from_config(tree["config"], net=net)
        if is_described and method.network.output is not None:
            raise FileFormatError(f"{path} has an output setting, but describes a network that returns a tensor.")
        method.num_data = tree["num_data"]
        shape = tree.get("input_shape")
        method._saved_shape = None if shape is None else torch.Size(shape)
        broken = [name for name, tensor in tree["tensors"].items() if not bool(tensor.isfinite().all())]
        if broken:
            raise FileFormatError(f"{path} holds NaN or infinite values in {broken[0]}: train it again.")
        method.load_tensors(tree["tensors"])
        if "calibrated" in tree:
            return Configurable.from_config(tree["calibrated"], method=method.eval())
    return method.eval()


def _network(path: str | os.PathLike[str], tree: dict[str, Any]) -> nn.Module:
    """The network that the file describes, no larger than what the file holds."""
    wanted = "pass the network: fsvi.load(path, net), or --net to fsvi predict."
    if tree.get("network") is None:
        raise FileFormatError(f"{path} does not describe its network, which is not made of standard layers: {wanted}")
    try:
        return build(tree["network"], limit=sum(tensor.numel() for tensor in tree["tensors"].values()))
    except FileFormatError as error:
        raise FileFormatError(f"{path} cannot be loaded by itself, as {str(error).rstrip('.')}: {wanted}") from error


def sum_terms(terms: dict[str, Tensor]) -> Tensor:
    """The loss."""
    first, *others = terms.values()
    return sum(others, first)


def _shape(tensors: dict[str, Tensor], name: str) -> torch.Size | None:
    return tensors[name].shape if name in tensors else None
