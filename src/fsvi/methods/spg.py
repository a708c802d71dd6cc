"""Functional variational inference with stochastic process generators (Ma & Hernández-Lobato, NeurIPS 2021)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fsvi.functions.contexts import Batch, Context
from fsvi.functions.contexts.general import context_points
from fsvi.functions.divergences import KLWeight, gaussian_kl, kl_weight_value
from fsvi.functions.gaussian import FunctionGaussian
from fsvi.functions.priors import GaussianProcess, Prior
from fsvi.inputs import concatenate
from fsvi.likelihoods import Likelihood
from fsvi.methods.base import Functions
from fsvi.methods.common import FunctionSpaceMethod
from fsvi.networks.calls import evaluating
from fsvi.networks.copies import deep_copy
from fsvi.networks.devices import in_float64, normal
from fsvi.networks.network import Network
from fsvi.networks.parameters import batch_norms
from fsvi.posteriors.dense import DenseGaussian
from fsvi.posteriors.mean_field import Stds, check_stds
from fsvi.validation import check_count, check_positive

_NUGGET = 1e-6


class SPG(FunctionSpaceMethod):
    """A generator with a latent variable is fitted to the prior over functions; then its latent is inferred from the
    data.

    1. The generator p: f_k(x) = h_k(x) + ψ(x)·z_k + ν_k(x), with z_k ~ N(0, I) for each output k and white noise ν ~
    N(0, δ²). Its mean h is the network's output, and its basis functions ψ are linear maps of the network's features.
    Before the first epoch, Adam fits it by minimizing E_X KL(prior(f(X)) ‖ p(f(X))) over random grids X of K context
    points and K training inputs.

    2. The posterior q: the same process with z_k ~ N(mean_k, L_k L_kᵀ), with a network and a basis of its own, which
    start from those of p. It minimizes −1/(BM) Σ log p(y|f(x; z)) + kl_weight · E_X KL(q(f(X)) ‖ p(f(X))) with M
    draws of z. The chain rule bounds the KL at a grid, in closed form in the latent:

        KL(q(f(X)) ‖ p(f(X))) ≤ KL(q(z) ‖ p(z)) + Σ_{x∈X} E_q(z) ‖h_q(x) + ψ_q(x)·z − h_p(x) − ψ_p(x)·z‖² / (2δ²).

    Differences from the paper: there, the latent goes through a network, and the generator is fitted to draws from the
    prior with the bound of a variational autoencoder, which needs an encoder for the latent. Here, the latent is linear
    and the priors are Gaussian at any grid, so the bound is exact: the generator is a Gaussian process with learned
    basis functions, and its fit needs neither encoder nor draws. ν stands for what the generator cannot express;
    predictions leave it out. The fit of the generator starts from the network's initial parameters.

    Args:
        net: The network, an `nn.Module` or an `fsvi.Network`; it is copied.
        likelihood: The distribution of targets given the network's outputs.
        context: Where the functions are compared with the prior. `fit` needs it.
        prior: The prior over functions; None is a Gaussian process for each output.
        num_context: The number of context points, K.
        num_latents: The number of latent variables per output.
        num_prior_steps: The number of steps in which the generator is fitted to the prior.
        prior_lr: The learning rate of these steps.
        num_samples: The number of draws of the latent, M.
        kl_weight: The weight of the KL in the loss: a number, None for 1/N (the ELBO), or `fsvi.Tempered(t)` for t/N.
        stds: How the latent's standard deviations start and learn; None is `Stds(1.0)`, the prior's.

    Examples:
        >>> context, net = fsvi.contexts.Uniform(widen=1.0), fsvi.networks.mlp(2, (20,), 2)
        >>> method = fsvi.SPG(net, fsvi.Categorical(), context, num_prior_steps=10)
        >>> history = fsvi.fit(method, fsvi.data.two_moons(100, noise=0.1, seed=0), epochs=2, seed=0)
    """

    is_fitted: Tensor
    """Whether the generator has been fitted to the prior."""

    def __init__(
        self,
        net: nn.Module | Network,
        likelihood: Likelihood,
        context: Context | None = None,
        *,
        prior: Prior | None = None,
        num_context: int = 32,
        num_latents: int = 64,
        num_prior_steps: int = 500,
        prior_lr: float = 1e-2,
        num_samples: int = 8,
        kl_weight: KLWeight = None,
        stds: Stds | None = None,
    ) -> None:
        prior = GaussianProcess() if prior is None else prior
        super().__init__(net, likelihood, context, prior, num_context, kl_weight)
        self.num_latents = check_count("num_latents", num_latents)
        self.num_prior_steps = check_count("num_prior_steps", num_prior_steps)
        self.prior_lr = check_positive("prior_lr", prior_lr)
        self.num_samples = check_count("num_samples", num_samples)
        self.stds = check_stds(stds, Stds(1.0))
        self.build(self._examined())

    def build(self, network: Network) -> None:
        """Make the posterior's generator, the prior's, and the latent's distribution."""
        super().build(network)
        self.generator = Generator(network, self.num_latents)
        self.prior_net = deep_copy(self.net).requires_grad_(False)
        self.prior_generator = Generator(network.replaced(self.prior_net), self.num_latents).requires_grad_(False)
        self._keep_generator()
        self.latent_mean = nn.Parameter(self.generator.basis.new_zeros(network.num_outputs, self.num_latents))
        self.latent = DenseGaussian(self.latent_mean.detach(), self.stds.single(), self.stds.lr_scale)
        self.register_buffer("is_fitted", torch.zeros((), dtype=torch.bool, device=network.device))

    def begin(self, x: Any, y: Tensor) -> None:
        """Show the data to context and prior, and fit the generator to the prior, once."""
        if self.is_fitted:
            return
        super().begin(x, y)
        noise = self.generator.log_noise.requires_grad_(True)
        free = [noise, self.generator.basis, *(p for p in self.net.parameters() if p.requires_grad)]
        optimizer = torch.optim.Adam(free, lr=self.prior_lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.num_prior_steps)
        self.train()
        for _ in range(self.num_prior_steps):
            grid = self._grid(x)
            if batch_norms(self.net):  # no likelihood pass updates their statistics yet
                with torch.no_grad():
                    self.network(grid[self.num_context :])
            optimizer.zero_grad()
            self.prior_kl(grid).backward()
            optimizer.step()
            schedule.step()
        optimizer.zero_grad()
        noise.requires_grad_(False)
        self._keep_generator()
        self.is_fitted.fill_(True)

    def prior_kl(self, x: Tensor) -> Tensor:
        """KL(prior(f(x)) ‖ p(f(x))) of the current generator, summed over outputs."""
        with evaluating(self.net):
            p = self.generator.gaussian(x)
        return gaussian_kl(self.prior.gaussian(x), p, _NUGGET)

    def _grid(self, x: Tensor) -> Any:
        """K points of the context, and as many of `x`."""
        points = context_points(self.network, self.context, self.num_context, x)
        return concatenate([points, self.network.arranged(Batch().sample(self.num_context, x))])

    def _keep_generator(self) -> None:
        self.prior_net.load_state_dict(self.net.state_dict())
        self.prior_generator.load_state_dict(self.generator.state_dict())

    def forward(self, x: Any, y: Tensor) -> dict[str, Tensor]:
        """The expected negative log-likelihood over M draws of the latent, and the weighted bound on the KL."""
        noise = torch.randn(self.num_samples, *self.latent_mean.shape, dtype=self.dtype, device=self.device)
        weight = kl_weight_value(self.kl_weight, self.num_data or len(x))
        nll = self.likelihood.nll(self._outputs(x, noise), y)
        return {"nll": nll, "kl": weight * self.function_kl(self._grid(x))}

    def function_kl(self, x: Tensor) -> Tensor:
        """The bound on KL(q(f(x)) ‖ p(f(x))), summed over outputs."""
        with evaluating(self.net), evaluating(self.prior_net):
            (mean, functions), (prior_mean, prior_functions) = self.generator(x), self.prior_generator(x)
        change = functions - prior_functions
        squares = (mean - prior_mean + change @ self.latent_mean.T).square()
        squares = squares.sum() + (change @ self.latent.factors()).square().sum()
        return self.latent.kl(self.latent_mean) + 0.5 * squares * (-2 * self.prior_generator.log_noise).exp()

    def _outputs(self, x: Any, noise: Tensor) -> Tensor:
        """h + ψ·z for draws of the latent from `noise` (M, outputs, latents), (M, n, outputs)."""
        mean, functions = self.generator(x)
        return mean + functions @ self.latent.draws(self.latent_mean, noise).mT

    def functions(self, num_samples: int, generator: torch.Generator) -> Functions:
        """Draws of the latent, all from one pass through the network."""
        noise = normal((num_samples, *self.latent_mean.shape), generator, self.dtype, self.device)
        return lambda x: self._outputs(x, noise)


class Generator(nn.Module):
    """A stochastic process f_k(x) = h_k(x) + ψ(x)·z_k + ν_k(x), with z_k ~ N(0, I) and white noise ν ~ N(0, δ²).

    h(x) is a network's output, Φ(x) its features, and ψ(x) = [Φ(x), 1] A with A = `basis` are the functions in which
    the process is expanded: a learned Karhunen–Loève expansion.
    """

    def __init__(self, network: Network, num_latents: int) -> None:
        super().__init__()
        self.network = network
        size = network.num_features + 1
        self.basis = nn.Parameter(network.linear.weight.new_empty(size, num_latents).normal_(std=size**-0.5))
        self.log_noise = nn.Parameter(network.linear.weight.new_zeros(()), requires_grad=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """h (n, outputs) and ψ (n, latents)."""
        features, outputs = self.network.with_features(x)
        return outputs, features @ self.basis[:-1] + self.basis[-1]

    def gaussian(self, x: Tensor) -> FunctionGaussian:
        """The process at `x`."""
        mean, functions = self(x)
        weight = functions.new_ones(1, functions.shape[1])
        return FunctionGaussian(mean, functions, weight, (2 * in_float64(self.log_noise)).exp())
