"""What methods with a mean-field posterior over parameters share: the part with the weights, and a base class."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from fsvi.errors import InvalidInputError
from fsvi.export import Functions
from fsvi.likelihoods import Likelihood
from fsvi.methods.kl_weight import KLWeight, check_kl_weight, kl_weight_value
from fsvi.methods.network_method import NetworkMethod
from fsvi.methods.parts import Part
from fsvi.networks.network import Network
from fsvi.networks.parameters import matching_names
from fsvi.serialization import Configurable
from fsvi.validation import check_count, check_positive, check_type
from fsvi.variational import MeanField, prior_names

if TYPE_CHECKING:
    from typing_extensions import Self

_FEATURE_STD = 0.01


class Stds(Configurable):
    """How the standard deviations of a posterior over parameters start, and how fast they learn.

    Args:
        init: The initial standard deviation; a pair gives those of the feature layers and of the last layer. None is
            the pair (0.01, 1/√features), with which function values have a variance of order one.
        lr_scale: The learning rate of the log standard deviations, as a multiple of that of the means.
    """

    def __init__(self, init: float | tuple[float, float] | None = None, lr_scale: float = 3.0) -> None:
        self.init = _check_init(init)
        self.lr_scale = check_positive("lr_scale", lr_scale, zero=True)

    def initial(self, names: Sequence[str], network: Network) -> dict[str, float]:
        """The initial standard deviation of each parameter.

        Args:
            names: The names of the parameters.
            network: The network, whose last layer has its own value.
        """
        default = (_FEATURE_STD, network.num_features**-0.5)
        features, last = default if self.init is None else _as_pair(self.init)
        return {name: last if name in network.head_names else features for name in names}

    def single(self) -> float:
        """The initial standard deviation for methods that treat all layers alike."""
        if isinstance(self.init, float):
            return self.init
        raise InvalidInputError(
            f"stds=Stds(init={self.init!r}) must give one number: this method does not tell layers apart."
        )


def check_stds(stds: Stds | None, default: Stds) -> Stds:
    """Check an argument `stds`.

    Args:
        stds: What the user gave.
        default: The method's own choice, which replaces None.
    """
    if stds is None:
        return default
    check_type("stds", stds, Stds, "fsvi.Stds(init=..., lr_scale=...)")
    return stds


class RandomWeights(Part):
    """A mean-field Gaussian over a network's parameters, with its draws and its state in files.

    In training mode, the network's own parameters share the memory of the means; otherwise they hold a copy.

    Args:
        stds: How the standard deviations start and learn.
        names: Which parameters are random: a function from the network to their names.
        family: The class of the distribution.
    """

    posterior: MeanField

    def __init__(self, stds: Stds, names: Callable[[Network], list[str]], family: type[MeanField] = MeanField) -> None:
        super().__init__()
        self._stds, self._names, self._family = stds, names, family

    def bind(self, network: Network) -> None:
        """Make the distribution, with the network's parameters as means."""
        super().bind(network)
        names = self._names(network)
        self.posterior = self._family(network.module, names, network.channels_last)
        self.posterior.set_stds(self._stds.initial(names, network))

    def train(self, mode: bool = True) -> Self:
        """In training mode, let the network share the memory of the means, which saves a vector as long as it is."""
        super().train(mode)
        for parameter, mean in self._pairs():
            if mode:
                parameter.data = mean
            elif parameter.data_ptr() == mean.data_ptr():
                parameter.data = mean.clone()
        return self

    def settle(self) -> None:
        """Copy the means into the network."""
        for parameter, mean in self._pairs():
            parameter.data.copy_(mean)

    def _pairs(self) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """The network's trainable parameters, each with its mean."""
        own = dict(self.network.module.named_parameters())
        return ((own[name], mean.data) for name, mean in self.posterior.params().items())

    def learning_rates(self) -> Iterator[tuple[nn.Parameter, float]]:
        """`log_std`, which has its own scale."""
        yield self.posterior.log_std, self._stds.lr_scale

    def point_parameters(self) -> list[nn.Parameter]:
        """The trainable parameters without a distribution."""
        return [self.posterior.point]

    def redundant_names(self) -> set[str]:
        """The network's own parameters, whose values the posterior holds."""
        return {f"net.{name}" for name in (*self.posterior.layout.names, *self.posterior.point_layout.names)}

    def outputs(self, x: Tensor, shifts: list[Tensor]) -> Tensor:
        """The network's outputs at mean + shift, (M, n, outputs).

        Args:
            x: Inputs.
            shifts: M distances from the mean, each as a flat vector.
        """
        return torch.stack([self.network(x, self.posterior.params(shift)) for shift in shifts])

    def draws(self, num_samples: int, generator: torch.Generator) -> Iterator[dict[str, Tensor]]:
        """Draws of the parameters, by name.

        Args:
            num_samples: The number of draws.
            generator: The source of random numbers.
        """
        q = self.posterior
        return (q.params(q.shift(q.noise(generator))) for _ in range(num_samples))


def all_names(network: Network) -> list[str]:
    """All trainable parameters except the scale and shift of BatchNorm and InstanceNorm."""
    return prior_names(network.module)


def last_layer_names(network: Network) -> list[str]:
    """The last layer's parameters."""
    return network.head_names


def named_layers(patterns: Sequence[str]) -> Callable[[Network], list[str]]:
    """The trainable parameters that one of `patterns` matches, and the last layer's.

    A pattern is the name of a layer or a parameter, in which `*` stands for anything.
    """
    return lambda network: matching_names(network.module, patterns, all_names(network), network.head_names)


class ParameterSpaceVI(NetworkMethod):
    """Minimizes −1/(BM) Σ log p(y|f(x; θ)) + kl_weight · KL(q(θ) ‖ N(0, prior_variance·I)), θ ~ q of some family.

    Args:
        net: The network, an `nn.Module` or an `fsvi.Network`; it is copied.
        likelihood: The distribution of targets given the network's outputs.
        prior_variance: The variance of the Gaussian prior over parameters.
        kl_weight: The weight of the KL in the loss; see `KLWeight`.
        num_samples: The number of draws per step, M.
        stds: How the standard deviations start and learn; None is `Stds(0.01, 0.3)`.
    """

    family: ClassVar[type[MeanField]] = MeanField
    """The class of q."""
    takes_positions = True

    def __init__(
        self,
        net: nn.Module | Network,
        likelihood: Likelihood,
        prior_variance: float,
        kl_weight: KLWeight,
        num_samples: int,
        stds: Stds | None,
    ) -> None:
        super().__init__(net, likelihood)
        self.prior_variance = check_positive("prior_variance", prior_variance)
        self.kl_weight = check_kl_weight(kl_weight)
        self.num_samples = check_count("num_samples", num_samples)
        self.stds = check_stds(stds, Stds(0.01, 0.3))
        self.weights = RandomWeights(self.stds, all_names, self.family)
        self.build(self.network)

    @property
    def posterior(self) -> Any:
        """q(θ)."""
        return self.weights.posterior

    def terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """The expected negative log-likelihood by M draws, and the weighted KL."""
        q = self.posterior
        shifts = [q.shift(q.noise()) for _ in range(self.num_samples)]
        nll = self.likelihood.nll(self.outputs(x, shifts), y)
        return {"nll": nll, "kl": kl_weight_value(self.kl_weight, self.num_data or len(x)) * self.kl(shifts)}

    def outputs(self, x: Tensor, shifts: list[Tensor]) -> Tensor:
        """The network's outputs at mean + shift, (M, n, outputs).

        Args:
            x: Inputs.
            shifts: M distances from the mean, each as a flat vector.
        """
        return self.weights.outputs(x, shifts)

    @abstractmethod
    def kl(self, shifts: list[Tensor]) -> Tensor:
        """KL(q(θ) ‖ p(θ)), exactly or estimated with the draws mean + shift."""

    def function_draws(self, x: Tensor, num_samples: int, generator: torch.Generator, batch_size: int) -> Tensor:
        """The network's outputs for draws of its parameters."""
        return self.draw_functions(self.weights.draws(num_samples, generator), x, batch_size)

    def fixed_draws(self, x: Any, num_samples: int, generator: torch.Generator) -> Functions:
        """The network's outputs for draws of its parameters."""
        return self.fixed_functions(self.weights.draws(num_samples, generator))


def _check_init(init: Any) -> float | tuple[float, float] | None:
    if init is None:
        return None
    if isinstance(init, (tuple, list)):
        if len(init) != 2:
            raise InvalidInputError(f"init={init!r} must be a number, or a pair: for the feature layers, and the last.")
        features, last = (check_positive("init", value) for value in init)
        return features, last
    return float(check_positive("init", init))


def _as_pair(init: float | tuple[float, float]) -> tuple[float, float]:
    return init if isinstance(init, tuple) else (init, init)
