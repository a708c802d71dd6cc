"""The protocol that every inference method follows.

`Method` is what `fit`, `predict` and files rely on. `NetworkMethod` (in `network_method.py`) implements it for one
network and is the class to derive from; `Ensemble` implements it for several methods. A new method needs two functions:
`terms`, the named parts of the loss, and `function_draws` for prediction. Everything else has a default.

A method's life, in order:

1. The constructor keeps its arguments, makes its parts (`fsvi.methods.parts`) and calls `build`.
2. `build(network)` makes what depends on the network's last layer. It runs again if example inputs show that the last
   layer is another one than the constructor could guess.
3. `begin(x, num_data)`: training starts.
4. `fit_prior(x, y)`: before the first epoch; a resumed training skips it.
5. For every minibatch: `backward(x, y)`, the optimizer's step, `after_step()`.
6. `after_epoch(batches)`: after every epoch.
7. `finish(batches)`: after training, the parameters have their final values.
8. `end_task(x)`: in a sequence of tasks (`fit_tasks`), after each of them.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from fsvi.errors import InvalidInputError
from fsvi.export import Functions
from fsvi.inputs import TARGET_KEYS, Inputs, example_shape, signature
from fsvi.likelihoods import Likelihood, Predictive, gathered
from fsvi.methods.exporting import export_method
from fsvi.methods.files import save_method
from fsvi.networks.devices import make_generator, moved
from fsvi.networks.modes import evaluating
from fsvi.networks.network import Network
from fsvi.serialization import Configurable
from fsvi.validation import as_tensor, check_count, check_inputs

if TYPE_CHECKING:
    pass

_ROWS_AT_ONCE = 10_000
"""Inputs whose draws are in memory at once when only summaries are kept."""

DataPass = Callable[[], Iterable[tuple[Tensor, Tensor]]]
"""A function that goes through the training data once more."""


class Method(Configurable, nn.Module, ABC):
    """An inference method: what `fit` trains and what predicts.

    Constructor arguments are kept as attributes of the same name, so that `save` can write them down.
    """

    transient = ("net",)
    takes_weights: ClassVar[bool] = True
    """Whether training can weigh examples, because targets enter the loss through `likelihood.nll` only."""
    can_compile: ClassVar[bool] = True
    """Whether torch.compile can follow the passes of training; not those under modes or transforms of functions."""
    takes_positions: ClassVar[bool] = False
    """Whether the network may have outputs at every position of an input: (n, positions..., outputs)"""

    _kind: Any = None
    """The structure, types and dimensions of inputs on which the network was checked."""
    _positions_by_shape: Mapping[str, tuple[int, ...]] = MappingProxyType({})
    """The positions of the outputs by the shape of one input, of this kind; lengths may differ between batches."""

    if TYPE_CHECKING:  # attributes of a NetworkMethod, properties of an Ensemble

        @property
        def net(self) -> nn.Module:
            """The trained network; after training it holds the posterior's means."""

        @property
        def network(self) -> Network:
            """What fsvi knows about `net`."""

        @property
        def likelihood(self) -> Likelihood:
            """The distribution of targets given the network's outputs."""

        @property
        def num_data(self) -> int | None:
            """The number of training examples; `fit` sets it."""

        @num_data.setter
        def num_data(self, value: int | None) -> None: ...

        @property
        def progress(self) -> float:
            """The share of training that is done when the current step is; `fit` sets it."""

        @progress.setter
        def progress(self, value: float) -> None: ...

    def __setattr__(self, name: str, value: Any) -> None:
        """Let properties decide what an assignment means; `nn.Module` would register a module next to them."""
        if isinstance(getattr(type(self), name, None), property):
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    # Learning -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """The named scalars whose sum is the loss on a minibatch: the negative log-likelihood `nll`, and others.

        Args:
            x: Inputs, validated by `check_batch`.
            y: Their targets.
        """

    def loss(self, x: Any, y: Any) -> Tensor:
        """The scalar to minimize. N is the number that `fit` has set, otherwise the size of the batch.

        Args:
            x: Inputs, (n, ...).
            y: Their targets.
        """
        x, y = self.check_batch(x, y)
        return sum_terms(self.terms(x, y))

    def backward(self, x: Tensor, y: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        """Compute the terms of the loss and add their gradient to the parameters' `grad`.

        Args:
            x: Inputs, validated by `check_batch`.
            y: Their targets.
            scale: A factor on the gradient. A step on several minibatches gives each one its share of the examples.

        Returns:
            The terms of the loss, by name.
        """
        terms = self.terms(x, y)
        differentiate(sum_terms(terms), scale)
        return terms

    @abstractmethod
    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """What the optimizer trains, as parameter groups with their learning rates."""

    def point_parameters(self) -> list[nn.Parameter]:
        """The network's weights that are learned as points, which the weight decay of AdamW acts on."""
        return []

    def learners(self) -> list[Method]:
        """The methods that learn independently of each other: this one, or the members of an ensemble."""
        return [self]

    def own_optimizer(self, lr: float) -> torch.optim.Optimizer | None:
        """The optimizer of a method whose update rule is part of it; None lets the user choose."""
        return None

    @abstractmethod
    def begin(self, x: Tensor, num_data: int) -> None:
        """Prepare for training.

        Args:
            x: Training inputs, all of them or a sample.
            num_data: The number of training examples, N.
        """

    def fit_prior(self, x: Tensor, y: Tensor) -> None:
        """Fit the prior, before the first epoch.

        Args:
            x: Training inputs, all of them or a sample.
            y: Their targets.
        """

    def step_sums(self) -> list[Tensor]:
        """Sums over the step's examples that `after_step` uses; several processes add theirs up in place."""
        return []

    def set_by_first_batch(self) -> list[Tensor]:
        """Tensors that the first minibatch sets to a mean over its examples; several processes average them."""
        return []

    def after_step(self) -> None:
        """Called after each step of the optimizer."""

    def after_epoch(self, batches: DataPass) -> None:
        """Called after each epoch; `batches` goes through the training data once more."""

    @abstractmethod
    def finish(self, batches: DataPass) -> None:
        """Called after training; `batches` goes through the training data once more."""

    def end_task(self, x: Tensor, seed: int = 0) -> None:
        """Called by `fit_tasks` after each task of a sequence; methods for continual learning keep what they need.

        Args:
            x: Training inputs of the task, all of them or a sample.
            seed: The seed of random choices.
        """

    # Prediction -----------------------------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> NoReturn:
        """A method has no single forward pass; this error says what to call."""
        raise InvalidInputError(
            f"{type(self).__name__} cannot be called like a network: use predict(x) for the predictive distribution, "
            "or net(x) for the outputs of the trained network."
        )

    @abstractmethod
    def function_draws(self, x: Tensor, num_samples: int, generator: torch.Generator, batch_size: int) -> Tensor:
        """The network's outputs for draws of the function, (samples, n, outputs), in eval mode without gradients.

        Args:
            x: Inputs, validated by `check_inputs`.
            num_samples: The number of draws. Methods without randomness return one.
            generator: The source of random numbers.
            batch_size: The number of inputs per pass through the network.
        """

    def predict(
        self, x: Any, num_samples: int = 100, seed: int = 0, batch_size: int = 512, summary: bool = False
    ) -> Predictive:
        """The predictive distribution at `x`.

        Args:
            x: Inputs, (n, ...): a tensor, or a dictionary or tuple of tensors. If the network has outputs at every
                position of an input, there is one prediction per position, input after input.
            num_samples: The number of draws of the function. All inputs share them.
            seed: The seed of the draws: the same seed gives the same functions in every call on the same device.
            batch_size: How many inputs go through the network at once.
            summary: Keep mean, variance, score and entropies instead of the draws (`fsvi.Summary`). The memory for
                draws then stays the same for any number of inputs.
        """
        check_count("num_samples", num_samples)
        check_count("batch_size", batch_size)
        x = self.check_inputs(x)
        if not summary:
            return self._predict(x, num_samples, seed, batch_size)
        rows = max(batch_size, _ROWS_AT_ONCE // batch_size * batch_size)
        num = len(x) * (math.prod(self._positions(x)) if self.network.is_dense else 1)
        return gathered((self._predict(part, num_samples, seed, batch_size) for part in x.split(rows)), num)

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

    def _predict(self, x: Tensor, num_samples: int, seed: int, batch_size: int) -> Predictive:
        x = self.network.arranged(x)  # once, not for each draw
        generator = make_generator(seed, self.device)
        with torch.no_grad(), evaluating(self):
            draws = self.function_draws(x, num_samples, generator, batch_size)
            return self.predictive(draws.flatten(1, -2) if draws.dim() > 3 else draws)

    def predictive(self, f: Tensor) -> Predictive:
        """The predictive distribution of function draws `f` (samples, n, outputs)."""
        return self.likelihood.predictive(f)

    # Export ---------------------------------------------------------------------------------------------------------

    def fixed_draws(self, x: Any, num_samples: int, generator: torch.Generator) -> Functions:
        """The functions that `function_draws` would draw, drawn now: `export` writes them to a file.

        Args:
            x: Example inputs, validated by `check_inputs`.
            num_samples: The number of draws.
            generator: The source of random numbers, used exactly as in `function_draws`.
        """
        raise InvalidInputError(
            f"{type(self).__name__} cannot be exported, because it does not say what its draws are: implement "
            "fixed_draws, or serve with predict_batches."
        )

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
        texts too if the network allows it. If the network has outputs at every position, so has each output.

        Args:
            path: The file, which is replaced if it exists. Its suffix decides: `.onnx` for ONNX, which needs
                `pip install 'fsvi[export]'`, or `.pt2` for `torch.export`.
            num_samples: The number of draws, all of which are in the file.
            seed: The seed of the draws.
            example: Inputs like those to come, at least one. None makes some up, of the shape that the method was
                trained on. Ids and real numbers together need an example.
            labels: The names of the classes, which the file then holds.
        """
        export_method(self, path, num_samples, seed, example, labels)

    # Inputs and targets ---------------------------------------------------------------------------------------------

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
        """The number of the network's outputs."""
        return self.network.num_outputs

    @property
    @abstractmethod
    def input_shape(self) -> Any:
        """The shape of one input, once the method has seen some; of structured inputs, the shapes by place."""

    @abstractmethod
    def set_saved_shape(self, shape: Any) -> None:
        """Remember the shape of one input from a file."""

    @abstractmethod
    def see(self, x: Tensor) -> None:
        """Check the network on example inputs."""

    @property
    @abstractmethod
    def seen_shape(self) -> Any:
        """The shape of one input on which the network was checked."""

    def check_inputs(self, x: Any) -> Any:
        """Inputs, validated. The network is checked on the first inputs of each new shape."""
        x = check_inputs(x, self.dtype)
        shape = example_shape(x)
        if shape != self.seen_shape:
            self._look_at(x, str(shape))
        return x

    def _look_at(self, x: Inputs, shape: str) -> None:
        """Check the network on inputs of a new kind; where only their lengths are new, one pass is enough."""
        kind = signature(x)
        if self._kind != kind:
            self.see(x[:2])
            self._kind, self._positions_by_shape = kind, {shape: self.network.layout.positions}
        elif shape not in self._positions_by_shape:
            new = {shape: self.network.position_shape(x[:1])}
            self._positions_by_shape = {**self._positions_by_shape, **new}

    def check_batch(self, x: Any, y: Any) -> tuple[Tensor, Tensor]:
        """Inputs and targets, validated, on the method's device.

        Args:
            x: Inputs, (n, ...).
            y: Their targets.
        """
        x = check_inputs(x, self.dtype)
        y = as_tensor("y", y)
        if y.dim() == 0 or len(x) != len(y):
            raise InvalidInputError(f"there are {len(x)} inputs, but targets of shape {tuple(y.shape)}.")
        x = self.check_inputs(x)
        y = self._check_targets(x, y)
        return self.network.arranged(x), moved(y.to(self.dtype) if y.is_floating_point() else y, self.device)

    def _check_targets(self, x: Inputs, y: Tensor) -> Tensor:
        """Targets, validated: one per input, or one per position of the outputs, (n, positions...)."""
        if not self.network.is_dense:
            return self.likelihood.check_targets(y, self.num_outputs)
        positions = self._positions(x)
        is_image = self.network.layout.axis == 1 and y.dim() == len(positions) + 2 and y.shape[2:] == positions
        y = y.movedim(1, -1) if is_image else y
        if tuple(y.shape[1 : 1 + len(positions)]) != positions:
            raise InvalidInputError(
                f"targets have shape {tuple(y.shape)}, but the network has outputs at {positions} positions of each "
                f"of {len(x)} inputs: give a target for each."
            )
        rows = self.likelihood.check_targets(self.target_rows(y), self.num_outputs)
        return rows.reshape(len(x), *positions, *rows.shape[1:])

    def _positions(self, x: Inputs) -> tuple[int, ...]:
        """The positions of the outputs at `x`."""
        return self._positions_by_shape.get(str(example_shape(x)), self.network.layout.positions)

    def target_rows(self, y: Tensor) -> Tensor:
        """Targets with one row per prediction: positions, if there are outputs at every position, are rows."""
        return y.flatten(0, len(self.network.layout.positions)) if self.network.is_dense else y

    # Files ----------------------------------------------------------------------------------------------------------

    @abstractmethod
    def description(self) -> dict[str, Any] | None:
        """The network as plain values, from which a file can rebuild it; None where it cannot."""

    def fingerprint(self) -> Any:
        """Checksums of data that the method trains on besides the data given to `fit`; None if there are none."""
        return None

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Everything learned, by name."""

    def redundant_names(self) -> set[str]:
        """Tensors of `state_dict` that follow from others and are not saved."""
        return set()

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """As in `nn.Module`, without those that follow from others: every number that is learned is listed once."""
        start = f"{prefix}." if prefix else ""
        redundant = {start + name for name in self.redundant_names()}
        every = super().named_parameters(prefix, recurse, remove_duplicate)
        return ((name, parameter) for name, parameter in every if name not in redundant)

    @abstractmethod
    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Load what `tensors` returned in this or another process."""

    def save(self, path: str | os.PathLike[str], calibrated: Configurable | None = None) -> None:
        """Write the trained method to one file, without pickle and without training data; read it with `fsvi.load`.

        Args:
            path: The file, which is replaced if it exists.
            calibrated: A calibration of this method, which `load` then returns.
        """
        save_method(self, path, calibrated)


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


def sum_terms(terms: dict[str, Tensor]) -> Tensor:
    """The loss: the sum of its terms."""
    first, *others = terms.values()
    return sum(others, first)


def mean_of(tensors: Sequence[Tensor]) -> Tensor:
    """The mean of tensors of one shape; a single one is returned as it is."""
    return tensors[0] if len(tensors) == 1 else torch.stack(list(tensors)).mean(0)


def differentiate(loss: Tensor, scale: float = 1.0) -> None:
    """Add the gradient of `loss`, times `scale`, to the `grad` of everything it depends on."""
    (loss if scale == 1 else scale * loss).backward()
