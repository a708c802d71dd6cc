"""Functional variational Bayesian neural networks (Sun, Zhang, Shi, Grosse; ICLR 2019)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import vmap

from fsvi.functions import LINEARIZERS
from fsvi.functions.contexts import Context
from fsvi.functions.priors import GaussianProcess, Prior
from fsvi.functions.stein import spectral_score
from fsvi.likelihoods import Likelihood
from fsvi.methods.function_space import FunctionSpaceMethod
from fsvi.methods.mean_field import MeanFieldMethod
from fsvi.networks.modes import evaluating
from fsvi.networks.network import Network
from fsvi.networks.parameters import is_dense
from fsvi.validation import check_count, check_fraction, check_positive
from fsvi.variational import MeanField, prior_names


class FBNN(FunctionSpaceMethod, MeanFieldMethod):
    """Minimises −1/(BS) Σ log p(y|f(x; θ)) + kl_weight · KL(q(f(X_M)) ‖ p(f(X_M))), X_M a set of measurement points.

    X_M is the minibatch and K = `num_context` points of `context`; θ = mean + exp(log_std)·ε is drawn S =
    `num_samples` times from a mean-field Gaussian q, through the real network. The KL has no closed form. Its gradient,

        ∇ KL = E_q[(∇_f log q(f) − ∇_f log p(f)) · ∇f],

    takes the posterior's score ∇_f log q from the S draws by the spectral Stein gradient estimator, for every output
    on its own, with eigenfunctions for `fraction` of the spectrum, and the prior's analytically. Noise of standard
    deviation `injected_noise` is added to the functions of both. So the value of the term `kl` is −kl_weight ·
    E_q[log p(f)] alone: the entropy of q enters by its gradient only. `kl_weight=None` is 1/N, the evidence lower
    bound divided by N; the authors' code has 1/B.

    `prior` is by default a Gaussian process for every output. In regression, with `learn_prior`, its hyperparameters
    are first fitted to targets by marginal likelihood, and the columns of a table have lengthscales of their own, as in
    the authors' code. In classification there is no such likelihood in closed form: they stay as given, by default the
    median distance between inputs and a variance of one. Any other prior stays as it is.

    `init_std` is where the parameters' standard deviations start; `log_std` learns `log_std_lr_scale` times as fast as
    the means.
    """

    def __init__(
        self,
        net: nn.Module | Network,
        likelihood: Likelihood,
        context: Context | None = None,
        prior: Prior | None = None,
        learn_prior: bool = True,
        num_context: int = 16,
        num_samples: int = 50,
        injected_noise: float = 0.01,
        fraction: float = 0.99,
        kl_weight: float | None = None,
        init_std: float = 0.05,
        log_std_lr_scale: float = 3.0,
    ) -> None:
        prior = GaussianProcess() if prior is None else prior
        super().__init__(net, likelihood, context, prior, num_context, kl_weight, learn_prior)
        self.num_samples = check_count("num_samples", num_samples, least=2)
        self.injected_noise = check_positive("injected_noise", injected_noise)
        self.fraction = check_fraction("fraction", fraction)
        self.init_std = check_positive("init_std", init_std)
        self.log_std_lr_scale = check_positive("log_std_lr_scale", log_std_lr_scale, zero=True)
        self.build(self.first_network())

    def build(self, network: Network) -> None:
        """Make the variational parameters."""
        super().build(network)
        names = prior_names(self.net)
        self.posterior = MeanField(self.net, names, self.network.channels_last)
        self.posterior.set_stds(dict.fromkeys(names, self.init_std))

    def terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """The expected negative log-likelihood by S draws, and the weighted KL's surrogate at the measurement set."""
        q = self.posterior
        shifts = q.shift(torch.randn(self.num_samples, *q.mean.shape, dtype=self.dtype, device=self.device))
        f = self.function_values(x, shifts)
        nll = self.likelihood.nll(f, y)
        points = self.draw_context(x)
        with evaluating(self.net):
            f = torch.cat([f, self.function_values(points, shifts)], dim=1)
        return {"nll": nll, "kl": self.weight(x) * self.surrogate_kl(torch.cat([x, points]), f)}

    def function_values(self, x: Tensor, shifts: Tensor) -> Tensor:
        """The real network's outputs at mean + shift for `shifts` (S, parameters), (S, n, outputs).

        Draws of a dense network are computed together, others one by one.
        """
        if not is_dense(self.net):
            return self.outputs(x, list(shifts))
        points = self.posterior.point_layout.views(self.posterior.point)
        draws = self.posterior.layout.views(self.posterior.mean + shifts)
        return vmap(lambda draw: self.network(x, {**draw, **points}), randomness="different")(draws)

    def surrogate_kl(self, x: Tensor, f: Tensor) -> Tensor:
        """−1/S Σ log p(fₛ) of draws `f` (S, M, outputs) at `x`, with the gradient of KL(q ‖ p)."""
        f = f.double()
        f = f + self.injected_noise * torch.randn_like(f)
        with torch.no_grad():
            p = self.prior.gaussian(self.network, x, LINEARIZERS["jvp"], joint=False).prepared(self.injected_noise**2)
            score = spectral_score(f.permute(2, 0, 1), self.fraction).permute(1, 2, 0)
        entropy_gradient = (score * (f - f.detach())).sum((1, 2))
        return (entropy_gradient - p.log_prob(f)).mean()
