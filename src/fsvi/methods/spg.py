"""Functional variational inference with stochastic process generators (Ma & Hernández-Lobato, NeurIPS 2021)."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from fsvi.functions import LINEARIZERS, gaussian_kl
from fsvi.functions.contexts import Batch, Context
from fsvi.functions.generator import Generator
from fsvi.functions.priors import GaussianProcess, Prior
from fsvi.likelihoods import Likelihood
from fsvi.methods.function_space import FunctionSpaceMethod
from fsvi.networks.modes import evaluating
from fsvi.networks.network import Network
from fsvi.networks.parameters import batch_norms
from fsvi.validation import check_count, check_positive

_NUGGET = 1e-6


class SPG(FunctionSpaceMethod):
    """A latent-variable generator is fitted to the prior over functions; then its latent is inferred from the data.

    1. The generator p: f_k(x) = h_k(x) + ψ(x)·z_k + ν_k(x), z_k ~ N(0, I) for each output k, ν ~ N(0, δ²) white, whose
       mean h and basis functions ψ are the network's outputs and linear maps of its features. It is fitted by
       `num_prior_steps` of Adam at `prior_lr`, before the first epoch: minimised is E_X KL(prior(f(X)) ‖ p(f(X))) over
       random grids X, K = `num_context` points of `context` and as many training inputs.
    2. The posterior q: the same process with z_k ~ N(mean_k, L_k L_kᵀ) and, with `adapt`, a network and a basis of its
       own, which start from p's. Minimised is −1/(BM) Σ log p(y|f(x; z)) + kl_weight · E_X KL(q(f(X)) ‖ p(f(X))) with
       M = `num_samples` draws of z, the grid functional KL bounded by the chain rule, in closed form in the latent:

       KL(q(f(X)) ‖ p(f(X))) ≤ KL(q(z) ‖ p(z)) + Σ_{x∈X} E_q(z) ‖h_q(x) + ψ_q(x)·z − h_p(x) − ψ_p(x)·z‖² / (2δ²).

       Without `adapt` the sum is zero, and the latent alone is inferred. `kl_weight=None` is 1/N.

    The prior is by default a Gaussian process for every output. `init_std` is where the diagonal of L starts, by
    default at the prior; its logarithm learns `log_std_lr_scale` times as fast as the rest.

    What differs from the paper: there the latent goes through a network, and the generator is fitted to draws from the
    prior by the bound of a variational autoencoder, with an encoder for the latent. Here the latent is linear, and
    fsvi's priors are Gaussian at any grid, so the bound is attained: the generator is a Gaussian process with learned
    basis functions, and its fit needs neither encoder nor draws. ν stands for what the generator cannot express, and
    predictions leave it out. The network's own initial values are only where the fit of the generator starts.
    """

    is_fitted: Tensor
    """whether the generator has been fitted to the prior"""

    def __init__(
        self,
        net: nn.Module | Network,
        likelihood: Likelihood,
        context: Context | None = None,
        prior: Prior | None = None,
        num_context: int = 32,
        num_latents: int = 64,
        num_prior_steps: int = 500,
        prior_lr: float = 1e-2,
        adapt: bool = True,
        num_samples: int = 8,
        kl_weight: float | None = None,
        init_std: float = 1.0,
        log_std_lr_scale: float = 3.0,
    ) -> None:
        prior = GaussianProcess() if prior is None else prior
        super().__init__(net, likelihood, context, prior, num_context, kl_weight)
        self.num_latents = check_count("num_latents", num_latents)
        self.num_prior_steps = check_count("num_prior_steps", num_prior_steps)
        self.prior_lr = check_positive("prior_lr", prior_lr)
        self.adapt = adapt
        self.num_samples = check_count("num_samples", num_samples)
        self.init_std = check_positive("init_std", init_std)
        self.log_std_lr_scale = check_positive("log_std_lr_scale", log_std_lr_scale, zero=True)
        self.build(self.first_network())

    def build(self, network: Network) -> None:
        """Make the posterior's generator, the prior's, and the latent's distribution."""
        super().build(network)
        self.generator = Generator(network, self.num_latents)
        self.prior_net = copy.deepcopy(self.net).requires_grad_(False)
        self.prior_generator = Generator(network.replaced(self.prior_net), self.num_latents).requires_grad_(False)
        self._keep_generator()
        shape = network.num_outputs, self.num_latents
        self.latent_mean = nn.Parameter(self.generator.basis.new_zeros(shape))
        self.latent_log_std = nn.Parameter(self.generator.basis.new_full(shape, self.init_std).log())
        self.latent_lower = nn.Parameter(self.generator.basis.new_zeros(*shape, self.num_latents))
        self.register_buffer("is_fitted", torch.tensor(False))

    # The generator --------------------------------------------------------------------------------------------------

    def fit_prior(self, x: Tensor, y: Tensor) -> None:
        """Fit the generator to the prior over functions, once."""
        if self.is_fitted:
            return
        free = [p for p in (*self.net.parameters(), *self.generator.parameters()) if p.requires_grad]
        optimizer = torch.optim.Adam(free, lr=self.prior_lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.num_prior_steps)
        self.network.train()
        for _ in range(self.num_prior_steps):
            grid = self._grid(x)
            self._track_statistics(grid[self.num_context :])
            optimizer.zero_grad()
            self.prior_kl(grid).backward()
            optimizer.step()
            schedule.step()
        optimizer.zero_grad()
        self._keep_generator()
        self.is_fitted.fill_(True)

    def prior_kl(self, x: Tensor) -> Tensor:
        """KL(prior(f(x)) ‖ p(f(x))), summed over outputs, of the generator as it is now."""
        with evaluating(self.net):
            p = self.generator.gaussian(x)
        return gaussian_kl(self.prior.gaussian(self.network, x, LINEARIZERS["jvp"], joint=False), p, _NUGGET)

    def _grid(self, x: Tensor) -> Tensor:
        """K points of the context, and as many of `x`."""
        return torch.cat([self.draw_context(x), self.network.arranged(Batch().sample(self.num_context, x))])

    def _track_statistics(self, x: Tensor) -> None:
        """Let BatchNorm, where there is any, see training inputs: no likelihood pass does so yet."""
        if batch_norms(self.net):
            with torch.no_grad():
                self.network(x)

    def _keep_generator(self) -> None:
        self.prior_net.load_state_dict(self.net.state_dict())
        self.prior_generator.load_state_dict(self.generator.state_dict())

    # Learning -------------------------------------------------------------------------------------------------------

    def terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """The expected negative log-likelihood by M draws of the latent, and the weighted bound on the KL at a grid."""
        mean, functions = self._generate(x)
        noise = torch.randn(self.num_samples, *self.latent_mean.shape, dtype=self.dtype, device=self.device)
        nll = self.likelihood.nll(self._functions(mean, functions, noise), y)
        return {"nll": nll, "kl": self.weight(x) * self.function_kl(self._grid(x))}

    def function_kl(self, x: Tensor) -> Tensor:
        """The bound on KL(q(f(x)) ‖ p(f(x))), summed over outputs."""
        kl = self.latent_kl()
        if not self.adapt:
            return kl
        with evaluating(self.net), evaluating(self.prior_net):
            (mean, functions), (prior_mean, prior_functions) = self.generator(x), self.prior_generator(x)
        change = functions - prior_functions
        squares = (mean - prior_mean + change @ self.latent_mean.T).square()
        squares = squares.sum() + (change @ self.latent_factor()).square().sum()
        return kl + 0.5 * squares * (-2 * self.prior_generator.log_noise).exp()

    def latent_factor(self) -> Tensor:
        """L_k, lower triangular, (outputs, latents, latents)."""
        return self.latent_lower.tril(-1) + torch.diag_embed(self.latent_log_std.exp())

    def latent_kl(self) -> Tensor:
        """KL(q(z) ‖ p(z)) = ½ Σ_k [‖L_k‖² + ‖mean_k‖² − H − 2 Σ log_std_k], with H latents an output."""
        squares = self.latent_factor().square().sum() + self.latent_mean.square().sum()
        return 0.5 * (squares - self.latent_mean.numel()) - self.latent_log_std.sum()

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """The latent's means, and with `adapt` network and basis, at `lr`; the latent's `log_std` at its own rate."""
        points = [self.latent_mean, self.latent_lower, *self.likelihood.parameters()]
        if self.adapt:
            points += [p for p in (*self.net.parameters(), self.generator.basis) if p.requires_grad]
        return [
            {"params": points, "lr": lr},
            {"params": [self.latent_log_std], "lr": self.log_std_lr_scale * lr},
        ]

    def _generate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """h and ψ at a minibatch, with gradients if they are learned."""
        if self.adapt:
            return self.generator(x)
        with torch.no_grad(), evaluating(self.net):
            return self.generator(x)

    def _functions(self, mean: Tensor, functions: Tensor, noise: Tensor) -> Tensor:
        """h + ψ·z for draws of the latent from `noise` (M, outputs, latents), (M, n, outputs)."""
        latent = self.latent_mean + torch.einsum("khl,mkl->mkh", self.latent_factor(), noise)
        return mean + functions @ latent.mT

    # Prediction -----------------------------------------------------------------------------------------------------

    def function_draws(self, x: Tensor, num_samples: int, generator: torch.Generator, batch_size: int) -> Tensor:
        """Draws of the latent, all from one pass through the network."""
        shape = num_samples, *self.latent_mean.shape
        noise = torch.randn(shape, generator=generator, dtype=self.dtype).to(self.device)
        parts = [self.generator(self.network.arranged(chunk)) for chunk in x.split(batch_size)]
        return torch.cat([self._functions(mean, functions, noise) for mean, functions in parts], dim=1)
