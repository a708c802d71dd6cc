"""The protocol that every inference method follows.

A method is an `nn.Module` around a network. It is two functions:

- `forward(x, y)`: the named terms of the loss on a minibatch. Their sum is what any torch optimizer minimizes.
- `functions(num_samples, generator)`: draws of the function, which `predict` evaluates and `export` traces. By default
  they are the network under draws of its parameters from a mean-field `posterior`.

Everything else has a default. In the order in which `fit` calls them, a method may also say: `build`, what depends on
the network's last layer; `begin`, that training starts; `parameter_groups` and `own_optimizer`, how parameters learn;
`after_step`, `after_epoch` and `finish`, what happens besides; and for prediction `predictive`.
"""

from __future__ import annotations

import copy
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from fsvi.errors import HeadError, InvalidInputError
from fsvi.export import export_method
from fsvi.inputs import TARGET_KEYS, example_shape, signature
from fsvi.likelihoods import Likelihood, Predictive, gathered
from fsvi.methods.files import as_tree
from fsvi.networks.calls import is_exporting
from fsvi.networks.copies import deep_copy
from fsvi.networks.devices import make_generator, moved
from fsvi.networks.network import Network
from fsvi.posteriors.mean_field import MeanField
from fsvi.serialization import METHOD, Configurable, write_tree
from fsvi.validation import as_tensor, check_count, check_inputs, check_type

if TYPE_CHECKING:
    from typing_extensions import Self

Functions = Callable[[Any], Tensor]
"""A function from inputs to the outputs of all draws, (samples, n, outputs)."""
DataPass = Callable[[], Iterable[tuple[Any, Tensor]]]
"""A function that goes through the training data once more."""

_ROWS_AT_ONCE = 10_000
"""Inputs whose draws are in memory at once when only summaries are kept."""
_NUMBERS_AT_ONCE = 2**25
"""Random numbers that draws may hold together; with more, draws are evaluated in groups."""
_COUNTERS = 2**16
"""A buffer of at most this size may be state that the network's `forward` changes; larger ones are tables."""
_EXAMINING = threading.RLock()
"""Only one thread at a time looks for a network's last layer."""


class Method(Configurable, nn.Module, ABC):
    """An inference method: what `fit` trains and what predicts.

    Constructor arguments are kept as attributes of the same name, so that `save` can write them down. The constructor
    must end with `self.build(self.network)`.

    Args:
        net: The network, an `nn.Module` or an `fsvi.Network`; it is copied, and the one passed in never changes.
        likelihood: The distribution of targets given the network's outputs; it is copied.

    Examples:
        >>> net = fsvi.networks.mlp(2, (20,), 2)
        >>> method = fsvi.MAP(net, fsvi.Categorical())
        >>> method.num_data = 100
        >>> terms = method(torch.randn(8, 2), torch.zeros(8, dtype=torch.long))
        >>> sorted(terms)  # their sum is the loss
        ['nll', 'prior']
    """

    _transient = ("net",)
    _takes_weights: ClassVar[bool] = True
    """Whether training can weigh examples, because targets enter the loss through `likelihood.nll` only."""
    _takes_positions: ClassVar[bool] = False
    """Whether the network may have outputs at every position of an input: (n, positions..., outputs)"""

    net: nn.Module
    """The network; its parameters are the posterior's means."""
    network: Network
    """What fsvi knows about `net`."""
    likelihood: Likelihood
    """The distribution of targets given the network's outputs."""
    num_data: int | None = None
    """The number of training examples N, which `fit` sets; None counts the minibatch."""
    progress: float = 0.0
    """The share of training that is done when the current step is; `fit` sets it."""
    input_shape: Any = None
    """The shape of one input, once the method has seen some; of structured inputs, the shapes by place."""
    _kind: Any = None
    """The structure, types and dimensions of inputs on which the network was checked."""

    def __init__(self, net: nn.Module | Network, likelihood: Likelihood) -> None:
        super().__init__()
        check_type("likelihood", likelihood, Likelihood, "a likelihood such as fsvi.Categorical() or fsvi.Gaussian()")
        self.network = Network.wrap(net).copied()
        self.net = self.network.module
        self.likelihood = copy.deepcopy(likelihood)

    def build(self, network: Network) -> None:
        """Make what depends on the network's last layer. It runs again if inputs show that this is another layer."""
        self.network = network
        self.likelihood.bind(network.num_outputs)
        self.likelihood.to(network.device)

    # Learning -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def forward(self, x: Any, y: Tensor) -> dict[str, Tensor]:
        """The named scalars whose sum is the loss on a minibatch: the negative log-likelihood `nll`, and others.

        Args:
            x: Inputs, validated by `check_batch`.
            y: Their targets.
        """

    def __call__(self, x: Any, y: Any) -> dict[str, Tensor]:
        """The terms of the loss at any inputs and targets that `fit` takes."""
        return super().__call__(*self.check_batch(x, y))

    def train(self, mode: bool = True) -> Self:
        """Training mode; normalization layers whose parameters are all frozen stay in eval mode."""
        super().train(mode)
        for learner in self.learners() if mode else ():
            for layer in learner.network.frozen_norms():
                layer.eval()
        return self

    def learners(self) -> list[Method]:
        """The methods that learn independently of each other: this one, or the members of an ensemble."""
        return [self]

    def begin(self, x: Any, y: Tensor) -> None:
        """Training starts.

        Args:
            x: Training inputs, all of them or a sample.
            y: Their targets.
        """

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """What an optimizer trains; log standard deviations have rates of their own.

        Args:
            lr: The learning rate.
        """
        scales: dict[int, Any] = {
            id(part.log_std): part.lr_scale for part in self.modules() if hasattr(part, "lr_scale")
        }
        learned = [p for p in self.parameters() if p.requires_grad and p.numel()]
        groups = [{"params": [p for p in learned if id(p) not in scales], "lr": lr}]
        return groups + [{"params": [p], "lr": scales[id(p)] * lr} for p in learned if id(p) in scales]

    def own_optimizer(self, lr: float) -> torch.optim.Optimizer | None:
        """The optimizer of a method whose update rule is part of it; None lets the user choose.

        Args:
            lr: The learning rate.
        """
        learners = self.learners()
        return learners[0]._optimizer_of(learners, lr)

    @classmethod
    def _optimizer_of(cls, methods: Sequence[Any], lr: float) -> torch.optim.Optimizer | None:
        """The optimizer of methods of this class, if their update rule is part of them."""
        return None

    def after_step(self) -> None:
        """Called after each step of the optimizer."""

    def after_epoch(self, batches: DataPass) -> None:
        """Called after each epoch, with a function that goes through the training data once more."""

    def finish(self, batches: DataPass) -> None:
        """Called after training, with a function that goes through the training data once more."""

    def _fingerprint(self) -> Any:
        """Checksums of the context's data, which a resumed training must agree with; None without any."""
        context = getattr(self, "context", None)
        return None if context is None else context.fingerprint()

    # Prediction -----------------------------------------------------------------------------------------------------

    def functions(self, num_samples: int, generator: torch.Generator) -> Functions:
        """Draws of the function: a callable from inputs to (samples, n, outputs) that draws nothing new when called.

        By default these are the network under draws of its parameters from the mean-field `posterior`, or without one
        the network itself, as a single draw. `predict` calls it on a copy in eval mode that shares the parameters, so
        it may change layers of `net`.

        Args:
            num_samples: The number of draws. Methods without randomness give one.
            generator: The source of random numbers.
        """
        posterior = getattr(self, "posterior", None)
        draws = posterior.draws(num_samples, generator) if isinstance(posterior, MeanField) else {}
        return network_functions(self.network, draws)

    def predictive(self, f: Tensor) -> Predictive:
        """The predictive distribution of function draws.

        Args:
            f: The draws, (samples, n, outputs).
        """
        return self.likelihood.predictive(f)

    def predict(
        self, x: Any, num_samples: int = 100, seed: int = 0, batch_size: int = 512, summary: bool = False
    ) -> Predictive:
        """The predictive distribution at `x`. Any number of threads may call it while the method is not trained.

        Args:
            x: Inputs, (n, ...): a tensor, or a dictionary or tuple of tensors.
            num_samples: The number of draws of the function. All inputs share them.
            seed: The seed of the draws: the same seed gives the same functions in every call on the same device.
            batch_size: How many inputs go through the network at once.
            summary: Keep mean, variance, score and entropies instead of the draws (`fsvi.likelihoods.Summary`). The
                memory for draws then stays the same for any number of inputs.
        """
        check_count("num_samples", num_samples)
        check_count("batch_size", batch_size)
        x = self.check_inputs(x)
        rows = max(batch_size, _ROWS_AT_ONCE // batch_size * batch_size) if summary else len(x)
        with torch.no_grad():
            copied = self._private()
            parts = (
                self.predictive(copied._values(part, num_samples, make_generator(seed, self.device), batch_size))
                for part in x.split(rows)
            )
            return gathered(parts, len(x)) if summary else next(parts)

    def predict_batches(
        self, loader: Any, num_samples: int = 100, seed: int = 0, batch_size: int = 512, summary: bool = False
    ) -> Iterator[Predictive]:
        """One prediction per batch, with the same draws of the function for all; only one batch is in memory.

        Args:
            loader: A DataLoader or another iterable of batches, each of inputs x, or of (x, y), whose y is not used. A
                Dataset and a tensor are divided into batches.
            num_samples: The number of draws of the function.
            seed: The seed of the draws.
            batch_size: How many inputs go through the network at once.
            summary: Yield summaries without the draws, as in `predict`.
        """
        for x in input_batches(loader, check_count("batch_size", batch_size)):
            yield self.predict(x, num_samples, seed, batch_size, summary)

    def _private(self) -> Self:
        """A copy in eval mode with layers of its own; it shares parameters, and buffers that are no counters."""
        instead: dict[int, Any] = {id(tensor): tensor for tensor in (*self.parameters(), *self.buffers())}
        for learner in self.learners():
            instead |= {id(b): b.clone() for b in learner.net.buffers() if b.numel() <= _COUNTERS}
            context = getattr(learner, "context", None)
            instead[id(context)] = context
        return deep_copy(self, instead).eval()

    def _values(self, x: Any, num_samples: int, generator: torch.Generator, batch_size: int) -> Tensor:
        """The values of draws, (samples, n, ...), in groups if all draws together are large."""
        group = max(1, _NUMBERS_AT_ONCE // max(1, self._draw_size()))
        chunks = [self.network.arranged(chunk) for chunk in x.split(batch_size)]
        values = []
        for start in range(0, num_samples, group):
            functions = self.functions(min(group, num_samples - start), generator)
            values.append(torch.cat([functions(chunk) for chunk in chunks], dim=1))
            if len(values[0]) < min(group, num_samples):  # a method without as many draws
                break
        return torch.cat(values)

    def _draw_size(self) -> int:
        """How many random numbers one draw holds."""
        posterior = getattr(self, "posterior", None)
        return posterior.log_std.numel() if isinstance(posterior, MeanField) else 1

    # Inputs and targets ---------------------------------------------------------------------------------------------

    @property
    def dtype(self) -> torch.dtype:
        """The floating type of the network's parameters."""
        return self.network.dtype

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.network.device

    def check_inputs(self, x: Any) -> Any:
        """Inputs, validated. The first inputs of each kind show where the network's last layer is.

        Args:
            x: Inputs, (n, ...).
        """
        x = check_inputs(x, self.dtype)
        if signature(x) != self._kind:
            with _EXAMINING:
                for learner in self.learners():
                    learner._examine(x[:2])
                self._kind, self.input_shape = signature(x), example_shape(x)
        return x

    def check_batch(self, x: Any, y: Any) -> tuple[Any, Tensor]:
        """Inputs and targets, validated, on the method's device.

        Args:
            x: Inputs, (n, ...).
            y: Their targets.
        """
        x, y = self.check_inputs(x), as_tensor("y", y)
        if y.dim() == 0 or len(x) != len(y):
            raise InvalidInputError(f"there are {len(x)} inputs, but targets of shape {tuple(y.shape)}.")
        y = self._check_targets(y)
        return self.network.arranged(x), moved(y.to(self.dtype) if y.is_floating_point() else y, self.device)

    def _check_targets(self, y: Tensor) -> Tensor:
        """Targets, validated: one per input, or one per position of the outputs, (n, positions...)."""
        positions = tuple(self.network.layout.positions)
        dims = len(positions)
        if not dims:
            return self.likelihood.check_targets(y, self.network.num_outputs)
        is_as_predicted = tuple(y.shape[1:-1]) == positions != tuple(y.shape[2:])
        if self.network.layout.axis == 1 and y.dim() == dims + 2 and not is_as_predicted:  # as the network's outputs
            y = y.movedim(1, -1)
        if y.dim() < dims + 1:
            raise InvalidInputError(
                f"targets have shape {tuple(y.shape)}, but the network has outputs at {self.network.layout.positions} "
                f"positions of each of {len(y)} inputs: give a target for each."
            )
        rows = self.likelihood.check_targets(y.flatten(0, dims), self.network.num_outputs)
        return rows.unflatten(0, y.shape[: dims + 1])

    def _examine(self, x: Any) -> None:
        """Find and check the network's last layer on example inputs; build again if the first guess was wrong."""
        network = self._private().network.examined(x).replaced(self.net)  # other threads may be using the network
        positions = network.layout.positions
        if positions and not self._takes_positions:
            raise HeadError(
                f"{type(self).__name__} needs one output vector per input, but the network has outputs at "
                f"{positions} positions: use FSVI, MFVI, MAP, MCDropout or SWAG."
            )
        if (network.head, network.is_tied, network.layout[:2], len(positions)) != (
            self.network.head,
            self.network.is_tied,
            self.network.layout[:2],
            len(self.network.layout.positions),
        ):
            own = dict(self.named_parameters())
            self.build(network)
            for name, new in dict(self.named_parameters()).items():  # those that an optimizer may know stay the same
                if name in own and own[name].shape == new.shape:
                    own[name].data = new.data
                    place, _, key = name.rpartition(".")
                    self.get_submodule(place)._parameters[key] = own[name]
        else:
            self.network = network

    # Files ----------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], calibrated: Method | None = None) -> None:
        """Write the trained method to one file, without pickle and without training data; read it with `fsvi.load`.

        Args:
            path: The file, which is replaced if it exists.
            calibrated: A calibration of this method, which is written instead.
        """
        write_tree(path, as_tree(self if calibrated is None else calibrated), METHOD)

    def export(
        self,
        path: str | os.PathLike[str],
        num_samples: int = 16,
        seed: int = 0,
        example: Any = None,
        labels: Sequence[str] | None = None,
    ) -> None:
        """Write the trained method as one graph that runs without fsvi: inputs in, mean and uncertainty out.

        The outputs are those of `predict(x, num_samples, seed)` on a CPU, up to rounding: `mean` (class probabilities,
        or the mean of the targets), for classes `entropy` and `mutual_information`, for numbers `std`, and `score` for
        a method with a score of its own. The number of examples can differ from batch to batch, and the length of
        texts too if the network allows it.

        Args:
            path: The file, which is replaced if it exists. Its suffix decides: `.onnx` for ONNX, which needs
                `pip install onnx onnxscript`, or `.pt2` for `torch.export`.
            num_samples: The number of draws, all of which are in the file.
            seed: The seed of the draws.
            example: Inputs like those to come, at least one. None makes some up, of the shape that the method was
                trained on. Ids and real numbers together need an example.
            labels: The names of the classes, which the file then holds.
        """
        export_method(self, path, num_samples, seed, example, labels)

    def config(self) -> dict[str, Any]:
        """The class and its settings, with those of its network."""
        config = super().config()
        config["settings"]["network"] = self.network.settings()
        return config

    @classmethod
    def _from_settings(cls, settings: Mapping[str, Any], **transient: Any) -> Any:
        """Build a method from the settings in its `config`; `transient` has the network, as `net`."""
        own = {name: value for name, value in settings.items() if name != "network"}
        net = Network.from_settings(settings["network"], transient.pop("net"))
        return super()._from_settings(own, net=net, **transient)


class Composite(Method):
    """A method made of others, the first of which speaks for all."""

    @property
    def net(self) -> nn.Module:  # type: ignore[override]
        """The first learner's module."""
        return self.learners()[0].net

    @property
    def network(self) -> Network:  # type: ignore[override]
        """The first learner's network."""
        return self.learners()[0].network

    @property
    def likelihood(self) -> Likelihood:  # type: ignore[override]
        """The first learner's likelihood."""
        return self.learners()[0].likelihood


def input_batches(loader: Any, batch_size: int) -> Iterator[Any]:
    """The inputs of every batch of a loader, without targets: those of pairs (x, y) and of dictionaries are removed."""
    if isinstance(loader, Dataset):
        loader = DataLoader(loader, batch_size)
    if isinstance(loader, (Tensor, np.ndarray)):
        loader = as_tensor("loader", loader).split(batch_size)
    if not isinstance(loader, Iterable) or isinstance(loader, (str, Mapping)):
        raise InvalidInputError(f"loader is a {type(loader).__name__}: give a DataLoader or an iterable of batches.")
    for batch in loader:
        if isinstance(batch, Mapping):
            yield {key: value for key, value in batch.items() if key not in TARGET_KEYS}
        else:
            yield batch[0] if isinstance(batch, (tuple, list)) else batch


def network_functions(network: Network, draws: Mapping[str, Tensor]) -> Functions:
    """The network's outputs under draws of parameters and buffers, (samples, ...) by name, as one function of inputs.

    If draws differ in the last layer only, one pass gives the features, and one product all outputs. Draws of a small
    dense network go through it together, by `vmap`. Without draws, there is one function, the network's own.
    """
    if not draws:
        return lambda x: network(x)[None]
    num = len(next(iter(draws.values())))
    if draws.keys() <= set(network.head_names) and not network.is_tied:
        own = dict(zip(network.head_names, network.linear.parameters(), strict=True))
        weight, *bias = (draws.get(name, own[name].expand(num, *own[name].shape)) for name in network.head_names)
        return lambda x: _head_values(network.features(x), weight.flatten(2), *bias)

    def functions(x: Any) -> Tensor:
        if num > 1 and network.is_small and not is_exporting():
            return torch.vmap(lambda params: network(x, params), randomness="different")(draws)
        return torch.stack([network(x, {name: draw[i] for name, draw in draws.items()}) for i in range(num)])

    return functions


def _head_values(features: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Outputs of heads (samples, outputs, features) at features (n, ..., features): (samples, n, ..., outputs)."""
    values = (features @ weight.flatten(0, 1).T).unflatten(-1, weight.shape[:2])
    return (values if bias is None else values + bias).movedim(-2, 0)
