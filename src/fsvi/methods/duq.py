"""Deterministic uncertainty quantification (van Amersfoort, Smith, Teh, Gal; ICML 2020)."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from fsvi.errors import InvalidInputError
from fsvi.inputs import describe_inputs
from fsvi.likelihoods import Categorical, CategoricalPredictive, Likelihood
from fsvi.methods.base import Functions, Method
from fsvi.networks.network import Network
from fsvi.ranks import all_sum
from fsvi.validation import check_fraction, check_positive


class KernelPredictive(CategoricalPredictive):
    """Class probabilities K_c / Σ K from log K_c, (samples, n, classes); the kernels are the measure of certainty."""

    def __init__(self, log_kernels: Tensor) -> None:
        super().__init__(log_kernels)
        self.kernels = log_kernels.exp()

    @property
    def score(self) -> Tensor:
        """The kernel distance −max_c K_c, (n,): −1 on the nearest centroid, 0 far from all of them."""
        return -self.kernels.mean(0).amax(-1)

    def graph_outputs(self) -> dict[str, Tensor]:
        """Class probabilities with their entropies, and the kernel distance as `score`."""
        return {**super().graph_outputs(), "score": self.score}


class DUQ(Method):
    """One network, whose features Φ(x) are compared with a centroid e_c of each class by a kernel.

    K_c(x) = exp(−‖W_c Φ(x) − e_c‖² / (2 m length_scale²)), with a square matrix W_c for m features. The loss is the
    mean over the batch and over the C classes of the binary cross-entropy −[y_c log K_c + (1 − y_c) log(1 − K_c)], plus
    `gradient_penalty` times the batch's mean of (‖∇ₓ Σ_c K_c‖² − 1)², two-sided, so that distances between features
    follow distances between inputs. Its uncertainty score is the distance to the nearest centroid, −max_c K_c.

    The centroids are exponential moving averages: after each step, over the batch's n_c inputs of class c,
    N_c ← momentum·N_c + (1 − momentum)·n_c, M_c ← momentum·M_c + (1 − momentum)·Σ W_c Φ(x), e_c = M_c / N_c.

    Classification only. The network's own last layer is not used.

    Args:
        net: The network, an `nn.Module` or an `fsvi.Network`; it is copied.
        likelihood: The distribution of targets given the network's outputs.
        length_scale: The width of the kernel.
        gradient_penalty: The weight of the gradient penalty.
        momentum: The momentum of the centroids' moving averages.

    Examples:
        >>> method = fsvi.DUQ(fsvi.networks.mlp(2, (20,), 2), fsvi.Categorical())
        >>> history = fsvi.fit(method, fsvi.data.two_moons(100, noise=0.1, seed=0), epochs=20, seed=0)
    """

    _takes_weights = False

    weight: nn.Parameter
    """W, (classes, m, m)"""
    counts: Tensor
    """N, (classes,)"""
    sums: Tensor
    """M, (classes, m)"""

    def __init__(
        self,
        net: nn.Module | Network,
        likelihood: Likelihood,
        *,
        length_scale: float = 0.1,
        gradient_penalty: float = 0.05,
        momentum: float = 0.999,
    ) -> None:
        super().__init__(net, likelihood)
        if not (isinstance(likelihood, Categorical) and likelihood.is_plain):
            raise InvalidInputError(
                f"DUQ has a loss of its own for classes, not for this {type(likelihood).__name__}: use "
                "fsvi.Categorical() without class_weight, label_smoothing and ignore_index."
            )
        self.length_scale = check_positive("length_scale", length_scale)
        self.gradient_penalty = check_positive("gradient_penalty", gradient_penalty, zero=True)
        self.momentum = check_fraction("momentum", momentum)
        self.build(self.network)

    def build(self, network: Network) -> None:
        """Make a random W_c and a random centroid for every class."""
        super().build(network)
        classes, size, like = network.num_outputs, network.num_features, network.linear.weight
        self.weight = nn.Parameter(like.new_empty(classes, size, size).normal_(std=0.05))
        self.register_buffer("counts", like.new_ones(classes))
        self.register_buffer("sums", like.new_empty(classes, size).normal_())
        self._step: list[Tensor] = []
        """n_c and Σ W_c Φ(x) over the minibatches of the present step."""

    @property
    def centroids(self) -> Tensor:
        """e, (classes, m)."""
        return self.sums / self.counts[:, None]

    def forward(self, x: Any, y: Tensor) -> dict[str, Tensor]:
        """The binary cross-entropy, and the weighted gradient penalty."""
        if y.is_floating_point():
            raise InvalidInputError("DUQ needs one label per input, not class probabilities.")
        penalized = self.gradient_penalty > 0
        if penalized and (not isinstance(x, Tensor) or not x.is_floating_point()):
            raise InvalidInputError(
                f"DUQ's gradient penalty needs inputs in one tensor of real numbers, not {describe_inputs(x)}: set "
                "gradient_penalty=0."
            )
        x = x.detach().requires_grad_(True) if penalized else x
        with sdpa_kernel(SDPBackend.MATH) if penalized else nullcontext():  # fused attention has no second derivative
            embeddings = self.embed(x)
        self._count(embeddings.detach(), y)
        log_kernels = self.log_kernels(embeddings)
        terms = {"nll": binary_cross_entropy(log_kernels, y)}
        if penalized:
            terms["penalty"] = self.gradient_penalty * gradient_penalty(log_kernels.exp(), x)
        return terms

    def after_step(self) -> None:
        """Move the centroids toward the embeddings of the step's minibatches."""
        all_sum(self._step)
        for average, total in zip((self.counts, self.sums), self._step, strict=True):
            average.lerp_(total, 1 - self.momentum)
        self._step = []

    def _count(self, embeddings: Tensor, y: Tensor) -> None:
        chosen = F.one_hot(y, len(self.counts)).to(embeddings.dtype)
        with torch.autocast(embeddings.device.type, enabled=False):
            own = [chosen.sum(0), torch.einsum("nc,ncm->cm", chosen, embeddings)]
        is_next = self._step and self.weight.grad is not None  # a step may have several minibatches
        self._step = [total + each for total, each in zip(self._step, own, strict=True)] if is_next else own

    def embed(self, x: Tensor) -> Tensor:
        """W_c Φ(x) for every class, (n, classes, m)."""
        features, _ = self.network.with_features(x)
        with torch.autocast(features.device.type, enabled=False):  # distances in half precision are too coarse
            return torch.einsum("cmf,nf->ncm", self.weight, features.to(self.weight.dtype))

    def log_kernels(self, embeddings: Tensor) -> Tensor:
        """log K_c, (n, classes). Distances that overflow are equal: no class is near, and the kernels are 0."""
        squared = (embeddings - self.centroids).square().mean(-1)
        return (-squared / (2 * self.length_scale**2)).clamp_min(torch.finfo(squared.dtype).min / 4)

    def functions(self, num_samples: int, generator: torch.Generator) -> Functions:
        """log K_c, whose softmax is K_c / Σ K, as a single draw."""
        return lambda x: self.log_kernels(self.embed(x)).unsqueeze(0)

    def predictive(self, f: Tensor) -> KernelPredictive:
        """Normalized kernels as probabilities, with the largest kernel as the measure of certainty."""
        return KernelPredictive(f)


def binary_cross_entropy(log_kernels: Tensor, y: Tensor) -> Tensor:
    """−[y_c log K_c + (1 − y_c) log(1 − K_c)], the mean over inputs and classes.

    It is computed from log K, so that a kernel that underflows still has a gradient.
    """
    distance = (-log_kernels).clamp_min(torch.finfo(log_kernels.dtype).eps)
    chosen = F.one_hot(y, log_kernels.shape[1]).bool()
    return torch.where(chosen, distance, -(-torch.expm1(-distance)).log()).mean()


def gradient_penalty(kernels: Tensor, x: Tensor) -> Tensor:
    """(‖∇ₓ Σ_c K_c‖² − 1)², the mean over inputs."""
    (gradient,) = torch.autograd.grad(kernels.sum(), x, create_graph=True)
    return (gradient.flatten(1).square().sum(1) - 1).square().mean()
