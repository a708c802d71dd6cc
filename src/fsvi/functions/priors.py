"""Priors over functions: a Gaussian over function values at any context points.

Examples:
    >>> net = fsvi.networks.mlp(2, (20,), 2)
    >>> method = fsvi.FSVI(net, fsvi.Categorical(), prior=fsvi.priors.Constant(1.0))
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from fsvi.errors import InvalidInputError
from fsvi.functions.gaussian import FunctionGaussian
from fsvi.functions.hyperparameters import fit_hyperparameters
from fsvi.functions.kernels import RBF, Kernel
from fsvi.functions.linearize import LINEARIZERS, has_stochastic_features
from fsvi.networks.calls import averaging_statistics
from fsvi.networks.copies import deep_copy
from fsvi.networks.devices import Precise, forked_random, in_float64, precise_dtype, seed_random
from fsvi.networks.network import Network
from fsvi.networks.parameters import batch_norms, deterministic_names, initialize
from fsvi.posteriors.mean_field import MeanField
from fsvi.serialization import Configurable
from fsvi.validation import check_positive, check_type


class Prior(Configurable, nn.Module, ABC):
    """What is known about the function before seeing data: a mean and a covariance at any points.

    To add a prior (a Gaussian process, for example), implement `gaussian`. `num_outputs` is known when it is called.
    """

    num_outputs: int
    """how many outputs the network has; known after `bind`"""

    def bind(self, network: Network, linearize: str = "jvp") -> None:
        """Get ready for this network; the method that uses the prior calls it once.

        Args:
            network: The network, whose last layer has been found.
            linearize: How the method turns distributions over parameters into distributions over functions.
        """
        self.num_outputs = network.num_outputs

    def prepare(self, x: Tensor) -> None:
        """See some training inputs before training starts."""

    @property
    def is_random(self) -> bool:
        """Whether `gaussian` draws parameters, so that two calls differ."""
        return False

    @abstractmethod
    def gaussian(self, x: Tensor, noise: Mapping[str, Tensor] | None = None) -> FunctionGaussian:
        """The prior at the points `x`: (K, Q) values, or (K·Q, 1) where outputs are correlated.

        Args:
            x: K points.
            noise: The ε ~ N(0, I) of the posterior's draw, by the names of the network's parameters. A prior that
                draws parameters uses the same ε, so that the divergence of a posterior from itself is zero.
        """


class Constant(Prior):
    """N(0, variance) at every context point and output, independently: what the paper uses most.

    Args:
        variance: The variance of every function value.
    """

    def __init__(self, variance: float = 1.0) -> None:
        super().__init__()
        self.variance = check_positive("variance", variance)

    def gaussian(self, x: Tensor, noise: Mapping[str, Tensor] | None = None) -> FunctionGaussian:
        """A zero mean and a diagonal covariance."""
        mean = torch.zeros(len(x), self.num_outputs, dtype=precise_dtype(x.device), device=x.device)
        return FunctionGaussian(mean, mean.new_zeros(len(x), 0), mean.new_zeros(1, 0), self.variance)


class GaussianProcess(Precise, Prior):
    """Every output is an independent process GP(0, k). Inputs are flattened.

    Args:
        lengthscale: The lengthscale of all inputs; None takes the median distance between training inputs.
        variance: The variance of every function value; a factor on `kernel` if there is one.
        learn: Whether to fit the process to the targets before training, by marginal likelihood. Fitting gives each
            column of a table its own lengthscale. It starts from `lengthscale` and the targets' own variance, or from
            the hyperparameters of `kernel`. It needs a regression with `fsvi.Gaussian`; a classification has no such
            likelihood in closed form.
        kernel: The covariance k, such as `fsvi.kernels.Matern(1.5) + fsvi.kernels.Linear()`; None is `RBF` with
            `lengthscale` and `variance`, k(x, x′) = variance · exp(−½ Σᵢ (xᵢ − x′ᵢ)²/lengthscaleᵢ²).
    """

    sized_by_data = ("hyperparameters",)
    hyperparameters: Tensor
    """the kernel's: by default one lengthscale, or one per column, followed by the variance"""

    def __init__(
        self,
        lengthscale: float | None = None,
        variance: float = 1.0,
        learn: bool = False,
        kernel: Kernel | None = None,
    ) -> None:
        super().__init__()
        self.learn = learn
        self.lengthscale = None if lengthscale is None else check_positive("lengthscale", lengthscale)
        self.variance = check_positive("variance", variance)
        if kernel is not None:
            check_type("kernel", kernel, Kernel, "a kernel such as fsvi.kernels.RBF()")
            if lengthscale is not None:
                raise InvalidInputError(f"lengthscale={lengthscale} belongs to the kernel: pass it to the kernel.")
        self.kernel = kernel
        self._kernel = RBF(self.lengthscale, self.variance) if kernel is None else kernel
        self.register_buffer("hyperparameters", self._kernel.start(None))

    def prepare(self, x: Tensor) -> None:
        """Check that the kernel fits the inputs, and find lengthscales that were not given."""
        _check_comparable(x)
        rows = x.flatten(1)
        self._kernel.check(rows.shape[1])
        if self._kernel.is_open:
            self.hyperparameters = self._kernel.start(rows)

    def fit(self, x: Tensor, y: Tensor, noise: Tensor, learn_noise: bool) -> None:
        """Maximize the marginal likelihood of targets `y` (n, q) with noise of standard deviation `noise` (q,)."""
        rows = x.flatten(1)
        self._kernel.check(rows.shape[1])
        start = self._kernel.start(rows, each_column=x.dim() == 2)
        if self.kernel is None:
            start[-1] = in_float64(y).square().mean().clamp_min(torch.finfo(torch.float32).tiny)
            self.hyperparameters, _ = fit_hyperparameters(self._kernel, x, y, start, noise, learn_noise)
        else:
            scale = self.variance**0.5
            self.hyperparameters, _ = fit_hyperparameters(self.kernel, x, y / scale, start, noise / scale, learn_noise)

    def gaussian(self, x: Tensor, noise: Mapping[str, Tensor] | None = None) -> FunctionGaussian:
        """A zero mean, and the kernel matrix by its eigenvectors, because it is often numerically singular."""
        _check_comparable(x)
        matrix = self._kernel(x, self.hyperparameters)
        roots, vectors = torch.linalg.eigh(matrix if self.kernel is None else self.variance * matrix)
        return FunctionGaussian(roots.new_zeros(len(x), self.num_outputs), vectors, roots.clamp_min(0)[None])


def _check_comparable(x: object) -> None:
    """Refuse inputs between which there is no distance, and positions of a network's outputs."""
    if not isinstance(x, Tensor):
        raise InvalidInputError(
            "GaussianProcess compares inputs by their distance, so it needs inputs in one tensor and one output vector "
            "per input: use fsvi.priors.Constant, Induced or Empirical."
        )


class _NetworkPrior(Prior):
    """The function distribution that a Gaussian over the parameters of a second network induces."""

    network: Network
    q: MeanField

    def bind(self, network: Network, linearize: str = "jvp") -> None:
        """Make the second network and the distribution over its parameters."""
        super().bind(network, linearize)
        self._linearize = linearize
        net, stds = self._network(network)
        net.requires_grad_(True)
        self.net = net
        self.network = network.replaced(net)
        self.q = MeanField(net, stds)
        self.requires_grad_(False)

    @abstractmethod
    def _network(self, network: Network) -> tuple[nn.Module, dict[str, float]]:
        """The second network, and the standard deviations of its stochastic parameters."""

    @property
    def is_random(self) -> bool:
        """Whether layers before the last are drawn; `exact` has a closed form for them."""
        return self._linearize != "exact" and has_stochastic_features(self.network, self.q)

    def gaussian(self, x: Tensor, noise: Mapping[str, Tensor] | None = None) -> FunctionGaussian:
        """The distribution of the second network's function values, linearized as the posterior's."""
        with torch.no_grad():
            draw = self.q.at(self._noise(noise or {})) if self.is_random else None
            return LINEARIZERS[self._linearize](self.network, self.q, x, draw)

    def _noise(self, given: Mapping[str, Tensor]) -> Tensor:
        """ε for every stochastic parameter: the given one where there is one, else a draw."""
        like = self.q.log_std
        shapes = self.q.layout.shapes.items()
        drawn = {name: torch.randn(s, dtype=like.dtype, device=like.device) for name, s in shapes if name not in given}
        return self.q.layout.flatten({**drawn, **given})


class Induced(_NetworkPrior):
    """The functions of a randomly initialized network of the same architecture.

    The prior's mean is a random initialization that is never trained. A zero mean would be degenerate: where all
    weights are zero, all features vanish. Frozen layers keep their parameters.

    Args:
        variance: The variance of the last layer's parameters.
        feature_variance: The variance of all other parameters. With 0 the prior's features are fixed.
        seed: The seed of the random initialization.
    """

    def __init__(self, variance: float = 1.0, feature_variance: float = 0.0, seed: int = 0) -> None:
        super().__init__()
        self.variance = check_positive("variance", variance)
        self.feature_variance = check_positive("feature_variance", feature_variance, zero=True)
        self.seed = seed

    def _network(self, network: Network) -> tuple[nn.Module, dict[str, float]]:
        """A copy of the network with random parameters."""
        net = deep_copy(network.module)
        self._frozen = (*network.replaced(net).frozen_norms(),)  # a tuple, so that they are not submodules
        with forked_random(network.device):
            seed_random(self.seed, network.device)
            initialize(net)
        stds = dict.fromkeys(network.head_names, math.sqrt(self.variance))
        if self.feature_variance > 0:
            skip = deterministic_names(net) | stds.keys()
            names = [name for name, _ in net.named_parameters() if name not in skip]
            stds |= dict.fromkeys(names, math.sqrt(self.feature_variance))
        return net, stds

    def gaussian(self, x: Tensor, noise: Mapping[str, Tensor] | None = None) -> FunctionGaussian:
        """As for other networks; all outputs share one covariance, so that it is factored once."""
        f = super().gaussian(x, noise)
        return replace(f, weight=f.weight[:1])

    def prepare(self, x: Tensor) -> None:
        """Give the random network BatchNorm statistics of its own, from training inputs."""
        if batch_norms(self.net):
            with torch.no_grad(), averaging_statistics(self.net, self._frozen):
                self.network(x)


class Empirical(_NetworkPrior):
    """A trained network as the prior: for transfer learning, or the previous task's posterior in continual learning.

    Args:
        source: A trained `nn.Module` of the same architecture, or a trained method. Its parameters are the prior's
            mean. A method with a `posterior` also gives the standard deviations.
        variance: The variance of the stochastic parameters where the source has no posterior.
        stochastic: The names of the stochastic parameters; None means the last layer's.
    """

    _transient = ("source",)

    def __init__(
        self, source: nn.Module | None, variance: float = 1.0, stochastic: Sequence[str] | None = None
    ) -> None:
        super().__init__()
        self.variance = check_positive("variance", variance)
        self.stochastic = None if stochastic is None else list(stochastic)
        # A tuple, so that the source is not a submodule: its parameters must not be trained or saved with this method.
        self._source = (source,)

    def bind(self, network: Network, linearize: str = "jvp") -> None:
        """Copy the source's parameters and standard deviations."""
        posterior = self._posterior
        if posterior is not None:
            self.stochastic = posterior.layout.names
        super().bind(network, linearize)
        if posterior is not None:
            self.q.log_std.copy_(self.q.layout.flatten(posterior.stds()).log())

    def forget_source(self) -> None:
        """Keep the copied parameters only, so that the source, and the sources of its own prior, can be freed."""
        self._source = (None,)

    @property
    def _posterior(self) -> MeanField | None:
        posterior = getattr(self._source[0], "posterior", None)
        return posterior if isinstance(posterior, MeanField) else None

    def _network(self, network: Network) -> tuple[nn.Module, dict[str, float]]:
        """A copy of the source's network."""
        source, net = self._source[0], deep_copy(network.module)
        names = self.stochastic or network.head_names
        _check_stochastic(names, network)
        if source is not None:
            trained = _network_of(source)
            _check_same_parameters(net, trained)
            net.load_state_dict(trained.state_dict())
        return net, dict.fromkeys(names, math.sqrt(self.variance))


def _network_of(source: nn.Module) -> nn.Module:
    """The network of a method, or the network itself."""
    is_method = isinstance(getattr(source, "network", None), Network)
    return source.get_submodule("net") if is_method else source


def _check_stochastic(names: Sequence[str], network: Network) -> None:
    known = [name for name, _ in network.module.named_parameters()]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InvalidInputError(
            f"stochastic={unknown[0]!r} is no parameter of the network: there are {', '.join(known)}."
        )
    if not set(network.head_names) <= set(names):
        raise InvalidInputError(f"stochastic={list(names)} leaves out the last layer, whose variance the prior needs.")


def _check_same_parameters(net: nn.Module, trained: nn.Module) -> None:
    own, given = ({name: p.shape for name, p in each.named_parameters()} for each in (net, trained))
    if own != given:
        odd = sorted(name for name in own.keys() | given.keys() if own.get(name) != given.get(name))
        raise InvalidInputError(f"the prior's network differs from the method's in {', '.join(odd[:3])}.")
