"""Function-space variational inference (Rudner, Chen, Teh, Gal; NeurIPS 2022)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fsvi.errors import HeadError, InvalidInputError
from fsvi.functions import LINEARIZERS, Linearization, diagonal_kl, gaussian_kl, has_stochastic_features
from fsvi.functions.contexts import Context
from fsvi.functions.priors import Constant, Prior
from fsvi.likelihoods import Likelihood
from fsvi.methods.method import Method
from fsvi.networks.split import Split, deterministic_names, split_head
from fsvi.validation import check_choice, check_count, check_inputs, check_positive
from fsvi.variational import MeanField


class FSVI(Method):
    """Minimises −1/(BM) Σ log p(y|f(x; θ)) + kl_weight · max over S context sets X_C of KL(q(f(X_C)) ‖ p(f(X_C))).

    θ = mean + exp(log_std)·ε is drawn from a mean-field Gaussian q. `linearize` says how q's function values at the
    K context points of a set become Gaussian, `prior` what they are compared with, `context` where the points come
    from. `kl_weight=None` is 1/N, the evidence lower bound divided by N; the KL grows with K, so the two belong
    together. R, the draws of the feature layers for the KL, is `num_feature_draws`.
    """

    def __init__(
        self,
        net: nn.Module,
        likelihood: Likelihood,
        context: Context | None = None,
        prior: Prior | None = None,
        num_context: int = 20,
        num_context_sets: int = 1,
        num_samples: int = 1,
        num_feature_draws: int = 1,
        stochastic: Literal["all", "last_layer"] = "all",
        covariance: Literal["full", "diagonal"] = "full",
        linearize: Linearization = "jvp",
        nugget: float = 1e-3,
        kl_weight: float | None = None,
        init_std: tuple[float, float] = (0.01, 0.1),
        log_std_lr_scale: float = 10.0,
        head: str | None = None,
        channels_last: bool = True,
    ) -> None:
        super().__init__(net, likelihood, head, channels_last)
        self.context = context
        self.prior = copy.deepcopy(prior) if prior is not None else Constant()
        self.num_context = check_count("num_context", num_context)
        self.num_context_sets = check_count("num_context_sets", num_context_sets)
        self.num_samples = check_count("num_samples", num_samples)
        self.num_feature_draws = check_count("num_feature_draws", num_feature_draws)
        self.stochastic = check_choice("stochastic", stochastic, ("all", "last_layer"))
        self.covariance = check_choice("covariance", covariance, ("full", "diagonal"))
        self.linearize = check_choice("linearize", linearize, LINEARIZERS)
        self.nugget = check_positive("nugget", nugget, zero=True)
        self.kl_weight = None if kl_weight is None else check_positive("kl_weight", kl_weight, zero=True)
        self.init_std = tuple(check_positive("init_std", std) for std in init_std)
        self.log_std_lr_scale = check_positive("log_std_lr_scale", log_std_lr_scale, zero=True)
        example = context.example() if context is not None else None
        self.build(split_head(self.net, None if example is None else self.arranged(example.to(self.dtype)), head))

    def build(self, split: Split) -> None:
        """Make the variational parameters and bind the prior."""
        super().build(split)
        self._check_head(split)
        head = split.head_names
        skip = deterministic_names(self.net)
        trainable = [name for name, p in self.net.named_parameters() if p.requires_grad and name not in skip]
        names = head if self.stochastic == "last_layer" else trainable
        self.posterior = MeanField(self.net, names, self.channels_last)
        self.posterior.set_stds({name: self.init_std[1 if name in head else 0] for name in names})
        self.prior.bind(split)

    # Learning -------------------------------------------------------------------------------------------------------

    def terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """The expected negative log-likelihood by M draws, and the weighted KL at the worst of S context sets."""
        q = self.posterior
        shifts = [q.shift(q.noise()) for _ in range(self.num_samples)]
        nll = self.likelihood.nll(self._outputs(x, shifts), y)
        weight = 1 / (self.num_data or len(x)) if self.kl_weight is None else self.kl_weight
        sets = [self.draw_context(x) for _ in range(self.num_context_sets)]
        return {"nll": nll, "kl": weight * self._largest_kl(sets, shifts)}

    def function_kl(self, x_context: Any) -> Tensor:
        """KL(q(f(X)) ‖ p(f(X))) at these points, summed over outputs; exact where only the last layer is stochastic,
        otherwise an average over fresh draws of the feature layers."""
        x = check_inputs(x_context, self.dtype)
        if x.shape[1:] != self._seen:
            self.see(x[:2])
        return self._kl(self.arranged(x), [])

    def draw_context(self, x: Tensor) -> Tensor:
        """A set of K context points to go with the minibatch `x`."""
        if self.context is None:
            raise InvalidInputError("FSVI has no context: pass context=, e.g. fsvi.contexts.Uniform(low=..., high=...).")
        points = self.context.sample(self.num_context, x)
        if points.shape[1:] != x.shape[1:]:
            raise InvalidInputError(
                f"context points have shape {tuple(points.shape[1:])}, but the network's inputs have shape "
                f"{tuple(x.shape[1:])}: give a context of the inputs' shape."
            )
        return self.arranged(points.to(x.dtype))

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Means and points at `lr`; `log_std`, which moves on another scale, at its own rate."""
        q = self.posterior
        points = [p for p in (q.mean, q.point, *self.likelihood.parameters()) if p.numel()]
        return [{"params": points, "lr": lr}, {"params": [q.log_std], "lr": self.log_std_lr_scale * lr}]

    def begin(self, x: Tensor, num_data: int) -> None:
        """Let context and prior see the training inputs, and find a bad context before the first step."""
        super().begin(x, num_data)
        if self.context is not None:
            self.context.prepare(x)
        self.draw_context(x[: min(len(x), 128)])
        self.prior.prepare(self.arranged(x[:512]))

    def finish(self, batches: Callable[[], Iterable[tuple[Tensor, Tensor]]]) -> None:
        """Leave the posterior's means in `net`."""
        self._write_means()

    def _outputs(self, x: Tensor, shifts: list[Tensor]) -> Tensor:
        """The real network's outputs for each draw, (M, n, outputs)."""
        q = self.posterior
        if has_stochastic_features(self.split, q):
            return torch.stack([functional_call(self.net, q.params(shift), (x,)) for shift in shifts])
        features, _ = self.split.forward(q.params(), x)
        return self._head_outputs(features, torch.stack(shifts))

    def _head_outputs(self, features: Tensor, shifts: Tensor) -> Tensor:
        """Outputs for draws of the last layer alone, (M, n, outputs), by one matrix product."""
        weight, *bias = (self.posterior.layout.views(self.posterior.mean + shifts)[n] for n in self.split.head_names)
        draws, outputs, width = weight.shape
        values = features @ weight.reshape(-1, width).T
        values = values.view(len(features), draws, outputs).transpose(0, 1)
        return values + bias[0][:, None] if bias else values

    def _largest_kl(self, sets: list[Tensor], shifts: list[Tensor]) -> Tensor:
        """max over sets of the KL summed over outputs; only the largest needs a gradient."""
        if len(sets) == 1:
            return self._kl(sets[0], shifts)
        shifts = self._feature_draws(shifts)
        with torch.no_grad():
            values = torch.stack([self._kl(x, shifts) for x in sets])
        return self._kl(sets[int(values.argmax())], shifts)

    def _kl(self, x: Tensor, shifts: list[Tensor]) -> Tensor:
        """The KL at one context set, averaged over R draws of the feature layers, the first of them `shifts`."""
        divergence = gaussian_kl if self.covariance == "full" else diagonal_kl
        joint = self.linearize == "exact" and has_stochastic_features(self.split, self.posterior)
        linearizer = LINEARIZERS["jvp" if self.linearize == "exact" and not joint else self.linearize]
        p = self.prior.gaussian(self.split, x, linearizer, joint)
        q = [linearizer(self.split, self.posterior, x, shift) for shift in self._feature_draws(shifts)]
        return torch.stack([divergence(each, p, self.nugget) for each in q]).mean()

    def _feature_draws(self, shifts: list[Tensor]) -> list[Tensor | None]:
        """R draws for the KL, those of the likelihood first: each term stays unbiased, and a draw is saved."""
        q = self.posterior
        if self.linearize == "exact" or not has_stochastic_features(self.split, q):
            return [None]
        more = self.num_feature_draws - len(shifts)
        return [*shifts[: self.num_feature_draws], *(q.shift(q.noise()) for _ in range(more))]

    # Prediction -----------------------------------------------------------------------------------------------------

    def function_draws(self, x: Tensor, num_samples: int, generator: torch.Generator, batch_size: int) -> Tensor:
        """Draws of the parameters through the real network; with a stochastic last layer alone, one pass serves all."""
        q = self.posterior
        if has_stochastic_features(self.split, q):
            params = (q.params(q.shift(q.noise(generator))) for _ in range(num_samples))
            return torch.stack([self.batched(lambda b, p=p: functional_call(self.net, p, (b,)), x, batch_size) for p in params])
        means = q.params()
        features = self.batched(lambda b: self.split.forward(means, b)[0], x, batch_size)
        shifts = torch.stack([q.shift(q.noise(generator)) for _ in range(num_samples)])
        return self._head_outputs(features, shifts)

    # Files ----------------------------------------------------------------------------------------------------------

    def redundant_names(self) -> set[str]:
        """The networks' own parameters, whose values the posterior and the prior hold."""
        own = {f"net.{name}" for name in self.posterior.params()}
        return own | {name for name in self.state_dict() if name.startswith("prior.net.") and "running" not in name}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Take over the tensors, and leave the means in `net`."""
        super().load_tensors(tensors)
        self._write_means()

    def _write_means(self) -> None:
        means = self.posterior.means()
        with torch.no_grad():
            for name, p in self.net.named_parameters():
                p.copy_(means[name])

    def _check_head(self, split: Split) -> None:
        frozen = [name for name, p in split.linear.named_parameters() if not p.requires_grad]
        if frozen:
            raise HeadError(f"the last layer {split.head!r} is frozen, but its parameters carry the uncertainty.")
        if split.is_tied and (self.stochastic == "last_layer" or self.linearize != "exact"):
            raise HeadError(
                f"the last layer {split.head!r} shares a parameter with an earlier layer, so it is not independent of "
                'the features: untie them, or use stochastic="all" with linearize="exact".'
            )
