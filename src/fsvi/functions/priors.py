"""Priors over functions: a Gaussian over function values at any context points."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fsvi.errors import InvalidInputError
from fsvi.functions.gaussian import FunctionGaussian
from fsvi.functions.kernels import fit_hyperparameters, median_distance, rbf_kernel
from fsvi.functions.linearize import Linearizer, has_stochastic_features, linearize_exact
from fsvi.networks.modes import averaging_statistics
from fsvi.networks.network import Network
from fsvi.networks.parameters import batch_norms, deterministic_names, initialize
from fsvi.serialization import Configurable
from fsvi.validation import check_positive
from fsvi.variational import MeanField


class Prior(Configurable, nn.Module, ABC):
    """What is believed of the function before data: a mean and a covariance at any points.

    A prior of your own (a Gaussian process, say) needs `gaussian` alone.
    """

    def bind(self, network: Network) -> None:
        """Get ready for this network; called once, by the method that uses the prior."""

    def prepare(self, x: Tensor) -> None:
        """See some training inputs before training starts."""

    def make_room(self, tensors: Mapping[str, Tensor]) -> None:
        """Give buffers whose size depends on data the size that they have in a file, before it is read."""

    @abstractmethod
    def gaussian(self, network: Network, x: Tensor, linearizer: Linearizer, joint: bool) -> FunctionGaussian:
        """The prior at the points `x`: (K, Q) values, or (K·Q, 1) when `joint` treats all outputs as one vector."""


class Constant(Prior):
    """N(0, variance) at every context point and output, independently: what the authors used most."""

    def __init__(self, variance: float = 1.0) -> None:
        super().__init__()
        self.variance = check_positive("variance", variance)

    def gaussian(self, network: Network, x: Tensor, linearizer: Linearizer, joint: bool) -> FunctionGaussian:
        """A zero mean and a diagonal covariance."""
        shape = (len(x) * network.num_outputs, 1) if joint else (len(x), network.num_outputs)
        mean = torch.zeros(shape, dtype=torch.float64, device=x.device)
        return FunctionGaussian(mean, mean.new_zeros(shape[0], 0), mean.new_zeros(1, 0), self.variance)


class GaussianProcess(Prior):
    """Every output an independent process GP(0, variance · exp(−½ Σᵢ (xᵢ − x′ᵢ)²/lengthscaleᵢ²)), inputs flattened.

    `lengthscale`, the same for all i, is by default the median distance between training inputs, known when training
    starts. A method that fits the process to targets (`learn_prior`) starts from it, and from the targets' own
    variance; the columns of a table then have lengthscales of their own.
    """

    hyperparameters: Tensor
    """one lengthscale, or one for every column, and the variance, as they are now"""

    def __init__(self, lengthscale: float | None = None, variance: float = 1.0) -> None:
        super().__init__()
        self.lengthscale = None if lengthscale is None else check_positive("lengthscale", lengthscale)
        self.variance = check_positive("variance", variance)
        values = torch.tensor([self.lengthscale or 1.0, self.variance], dtype=torch.float64)
        self.register_buffer("hyperparameters", values)

    def prepare(self, x: Tensor) -> None:
        """Find the lengthscale if none was given."""
        if self.lengthscale is None:
            self.hyperparameters[:-1] = median_distance(x)

    def fit(self, x: Tensor, y: Tensor, noise: Tensor, learn_noise: bool) -> None:
        """Maximise the marginal likelihood of targets `y` (n, q) with noise of standard deviation `noise` (q,)."""
        lengthscale = median_distance(x) if self.lengthscale is None else x.new_tensor(self.lengthscale)
        columns = x.shape[1] if x.dim() == 2 else 1
        variance = y.double().square().mean().clamp_min(torch.finfo(torch.float32).tiny)
        start = (lengthscale.double().expand(columns), variance, noise)
        lengthscales, variance, _ = fit_hyperparameters(x, y, start, learn_noise)
        self.hyperparameters = torch.cat([lengthscales, variance[None]])

    def make_room(self, tensors: Mapping[str, Tensor]) -> None:
        """Expect as many lengthscales as a file has."""
        values = tensors.get("hyperparameters")
        if values is not None and values.dim() == 1 and len(values) > 1:
            self.hyperparameters = self.hyperparameters.new_ones(len(values))

    def gaussian(self, network: Network, x: Tensor, linearizer: Linearizer, joint: bool) -> FunctionGaussian:
        """A zero mean, and the kernel's matrix by its eigenvectors, since it is often singular to rounding."""
        kernel = rbf_kernel(x, self.hyperparameters[:-1], self.hyperparameters[-1])
        roots, vectors = torch.linalg.eigh(kernel)
        values = FunctionGaussian(roots.new_zeros(len(x), network.num_outputs), vectors, roots.clamp_min(0)[None])
        return _as_joint(values) if joint else values


class _NetworkPrior(Prior):
    """The function distribution that a Gaussian over the parameters of a second network induces."""

    network: Network
    q: MeanField

    def _adopt(self, network: Network, net: nn.Module, stds: dict[str, float]) -> None:
        net.requires_grad_(True)
        self.net = net
        self.network = network.replaced(net)
        self.q = MeanField(net, list(stds))
        self.q.set_stds(stds)
        self.requires_grad_(False)

    def gaussian(self, network: Network, x: Tensor, linearizer: Linearizer, joint: bool) -> FunctionGaussian:
        """The same linearisation as the posterior's, at the prior's own mean and variance."""
        with torch.no_grad():
            random = has_stochastic_features(self.network, self.q)
            shift = self.q.shift(self.q.noise()) if random and linearizer is not linearize_exact else None
            values = linearizer(self.network, self.q, x, shift)
            return _as_joint(values) if joint and not random else values


class Induced(_NetworkPrior):
    """Linearise a random initialisation of the same network, `variance` on its last layer's parameters.

    A zero-mean prior over parameters would be degenerate, because every feature vanishes where all weights are zero; so
    the prior's mean is a random initialisation, drawn with `seed` and never trained; layers that were frozen keep
    their parameters. `feature_variance` is the variance of the parameters before the last layer; with 0, the default,
    the prior's features are fixed.
    """

    def __init__(self, variance: float = 1.0, feature_variance: float = 0.0, seed: int = 0) -> None:
        super().__init__()
        self.variance = check_positive("variance", variance)
        self.feature_variance = check_positive("feature_variance", feature_variance, zero=True)
        self.seed = seed

    def bind(self, network: Network) -> None:
        """Draw the random initialization."""
        net = copy.deepcopy(network.module)
        self._frozen = (*network.replaced(net).frozen_norms(),)  # a tuple, so that they are not submodules
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            initialize(net)
        stds = dict.fromkeys(_last_layer_names(network), math.sqrt(self.variance))
        if self.feature_variance > 0:
            skip = deterministic_names(net) | stds.keys()
            names = [name for name, _ in net.named_parameters() if name not in skip]
            stds |= dict.fromkeys(names, math.sqrt(self.feature_variance))
        self._adopt(network, net, stds)

    def prepare(self, x: Tensor) -> None:
        """Give the random network BatchNorm statistics of its own, from training inputs."""
        if batch_norms(self.net):
            with torch.no_grad(), averaging_statistics(self.net, self._frozen):
                self.network(x, self.q.params())


class Empirical(_NetworkPrior):
    """A trained network as the prior: transfer learning, or the previous task's posterior in continual learning.

    `source` is an `nn.Module` of the same architecture, or a trained method such as `MAP`, whose parameters are the
    prior's mean, with `variance` on the last layer, or on the parameters named in `stochastic`; or a trained method
    with a `posterior`, whose means and standard deviations are taken over.
    """

    transient = ("source",)

    def __init__(
        self, source: nn.Module | None, variance: float = 1.0, stochastic: Sequence[str] | None = None
    ) -> None:
        super().__init__()
        self.variance = check_positive("variance", variance)
        self.stochastic = None if stochastic is None else list(stochastic)
        # a tuple, so that the source is no submodule: its parameters must not be trained or saved with this method
        self._source = (source,)

    def bind(self, network: Network) -> None:
        """Take over the source's parameters."""
        source = self._source[0]
        net = copy.deepcopy(network.module)
        posterior = getattr(source, "posterior", None)
        if isinstance(posterior, MeanField):
            self.stochastic = posterior.layout.names
        names = self.stochastic or _last_layer_names(network)
        _check_stochastic(names, network)
        if source is not None:
            trained = _network(source)
            means = posterior.means() if isinstance(posterior, MeanField) else dict(trained.named_parameters())
            _load(net, means, dict(trained.named_buffers()))
        self._adopt(network, net, dict.fromkeys(names, math.sqrt(self.variance)))
        if isinstance(posterior, MeanField):
            self.q.log_std.copy_(self.q.layout.flatten(posterior.stds()).log())


def _network(source: nn.Module) -> nn.Module:
    """The network of a method, which has a split into features and last layer, or the network itself."""
    is_method = isinstance(getattr(source, "network", None), Network)
    return source.get_submodule("net") if is_method else source


def _check_stochastic(names: Sequence[str], network: Network) -> None:
    known = [name for name, _ in network.module.named_parameters()]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InvalidInputError(
            f"stochastic={unknown[0]!r} is no parameter of the network: there are {', '.join(known)}."
        )
    if not set(_last_layer_names(network)) <= set(names):
        raise InvalidInputError(f"stochastic={list(names)} leaves out the last layer, whose variance the prior needs.")


def _last_layer_names(network: Network) -> list[str]:
    """The last layer's parameters as `named_parameters` calls them: a tied one bears an earlier layer's name."""
    names = {id(p): name for name, p in network.module.named_parameters()}
    return [names[id(p)] for p in network.linear.parameters()]


def _as_joint(values: FunctionGaussian) -> FunctionGaussian:
    """Independent outputs (K, Q) as one Gaussian over K·Q values, point by point."""
    points, outputs = values.mean.shape
    covariance = values.covariance().expand(outputs, points, points)
    joint = torch.einsum(
        "qij,qr->iqjr", covariance, torch.eye(outputs, dtype=covariance.dtype, device=covariance.device)
    )
    size = points * outputs
    roots, vectors = torch.linalg.eigh(joint.reshape(size, size).double())
    return FunctionGaussian(values.mean.reshape(-1, 1), vectors, roots.clamp_min(0)[None])


def _load(net: nn.Module, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> None:
    own = {name: p.shape for name, p in net.named_parameters()}
    given = {name: p.shape for name, p in parameters.items()}
    if own != given:
        odd = sorted(name for name in own.keys() | given.keys() if own.get(name) != given.get(name))
        raise InvalidInputError(f"the prior's network differs from the method's in {', '.join(odd[:3])}.")
    with torch.no_grad():
        for name, p in net.named_parameters():
            p.copy_(parameters[name])
        for name, b in net.named_buffers():
            b.copy_(buffers[name])
