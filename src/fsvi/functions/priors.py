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
from fsvi.networks.devices import Precise, forked_random, in_float64, seed_random
from fsvi.networks.network import Network
from fsvi.networks.parameters import batch_norms, deterministic_names, initialize, matching_names
from fsvi.posteriors.mean_field import MeanField
from fsvi.serialization import Configurable
from fsvi.validation import check_positive, check_type


class Prior(Configurable, nn.Module, ABC):
    """What is known about the function before seeing data: a mean and a covariance at any points.

    To add a prior (a Gaussian process, for example), implement `gaussian`. `num_outputs` is known when it is called.
    """

    num_outputs: int
    """how many outputs the network has; known after `bind`"""
    is_random: bool = False
    """whether `gaussian` draws parameters, so that two calls differ; known after `bind`"""

    def bind(self, network: Network, linearize: str = "jvp") -> None:
        """Get ready for this network; the method that uses the prior calls it once.

        Args:
            network: The network, whose last layer has been found.
            linearize: How the method turns distributions over parameters into distributions over functions.
        """
        self.num_outputs = network.num_outputs

    def prepare(self, x: Tensor) -> None:
        """See some training inputs before training starts."""

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
        mean = torch.zeros(len(x), self.num_outputs, device=x.device)
        return FunctionGaussian(mean, mean[:, :0], mean[:1, :0], self.variance)


class GaussianProcess(Precise, Prior):
    """Every output is an independent process GP(0, k).

    Args:
        kernel: The covariance k, such as `fsvi.kernels.Matern(1.5) + fsvi.kernels.Linear()`; None is
            `fsvi.kernels.RBF()`, whose lengthscale is the median distance between training inputs.
        learn: Whether to fit the kernel's hyperparameters to the targets before training, by marginal likelihood, with
            a lengthscale for each column of a table. The fit starts from those of `kernel`, or without one from the
            targets' own variance. It needs a regression with `fsvi.Gaussian`; a classification has no such likelihood
            in closed form.
    """

    sized_by_data = ("hyperparameters",)
    hyperparameters: Tensor
    """the kernel's, such as a lengthscale per column followed by the variance; empty before it has seen any data"""

    def __init__(self, kernel: Kernel | None = None, learn: bool = False) -> None:
        super().__init__()
        if kernel is not None:
            check_type("kernel", kernel, Kernel, "a kernel such as fsvi.kernels.RBF()")
        self.kernel, self.learn = kernel, learn
        self._kernel = RBF() if kernel is None else kernel
        self.register_buffer("hyperparameters", torch.zeros(0, dtype=torch.float64))

    def prepare(self, x: Tensor) -> None:
        """Check that the kernel fits the inputs, and find lengthscales that were not given."""
        _check_comparable(x)
        self.hyperparameters = self._kernel.start(x)

    def fit(self, x: Tensor, y: Tensor, noise: Tensor, learn_noise: bool) -> None:
        """Maximize the marginal likelihood of targets `y` (n, q) with noise of standard deviation `noise` (q,)."""
        start = self._kernel.start(x)
        if self.kernel is None:
            start[-1] = in_float64(y).square().mean().clamp_min(torch.finfo(torch.float32).tiny)
        self.hyperparameters, _ = fit_hyperparameters(self._kernel, x, y, start, noise, learn_noise)

    def gaussian(self, x: Tensor, noise: Mapping[str, Tensor] | None = None) -> FunctionGaussian:
        """A zero mean, and the kernel matrix by its eigenvectors, because it is often numerically singular."""
        _check_comparable(x)
        matrix = self._kernel(x, self.hyperparameters if len(self.hyperparameters) else None)
        roots, vectors = torch.linalg.eigh(matrix)
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

    def _become(self, net: nn.Module, stds: Mapping[str, float], network: Network, linearize: str) -> None:
        """Take `net` as the second network, with these standard deviations of its stochastic parameters."""
        super().bind(network, linearize)
        self.net, self.network, self.q = net, network.replaced(net), MeanField(net, stds)
        self.requires_grad_(False)
        self._linearizer = LINEARIZERS[linearize]
        self.is_random = linearize != "exact" and has_stochastic_features(self.network, self.q)

    def gaussian(self, x: Tensor, noise: Mapping[str, Tensor] | None = None) -> FunctionGaussian:
        """The distribution of the second network's function values, linearized as the posterior's."""
        with torch.no_grad():
            draw = None
            if self.is_random:  # ε is drawn where none is given
                draw = self.q.at(self.q.layout.flatten({**self.q.layout.views(self.q.noise()), **(noise or {})}))
            return self._linearizer(self.network, self.q, x, draw)


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

    def bind(self, network: Network, linearize: str = "jvp") -> None:
        """Make a copy of the network with random parameters."""
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
        self._become(net, stds, network, linearize)

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
        stochastic: The names of stochastic layers or parameters, or patterns; the last layer is always among them.
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
        source, net = self._source[0], deep_copy(network.module)
        posterior = getattr(source, "posterior", None)
        if isinstance(posterior, MeanField):
            self.stochastic = list(posterior.layout.shapes)
        known = [name for name, _ in net.named_parameters()]
        names = matching_names(net, self.stochastic or (), known, network.head_names)
        if source is not None:
            is_method = isinstance(getattr(source, "network", None), Network)
            trained = source.get_submodule("net") if is_method else source
            own, given = ({name: p.shape for name, p in each.named_parameters()} for each in (net, trained))
            odd = sorted(name for name in own.keys() | given.keys() if own.get(name) != given.get(name))
            if odd:
                raise InvalidInputError(f"the prior's network differs from the method's in {', '.join(odd[:3])}.")
            net.load_state_dict(trained.state_dict())
        self._become(net, dict.fromkeys(names, math.sqrt(self.variance)), network, linearize)
        if isinstance(posterior, MeanField):
            self.q.log_std.copy_(self.q.layout.flatten(posterior.stds()).log())

    def forget_source(self) -> None:
        """Keep the copied parameters only, so that the source, and the sources of its own prior, can be freed."""
        self._source = (None,)
