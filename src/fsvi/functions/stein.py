"""The spectral Stein gradient estimator (Shi, Sun, Zhu; ICML 2018): a density's score from samples alone."""

from __future__ import annotations

import torch
from torch import Tensor

from fsvi.networks.devices import in_float64


def spectral_score(samples: Tensor, fraction: float = 0.99) -> Tensor:
    """∇ log q at each of the `samples` (..., S, d) of q, from nothing but these; batch dimensions come first.

    With k(x, x′) = exp(−½ Σᵢ (xᵢ − x′ᵢ)²/ℓᵢ²) and K u_j = λ_j u_j on the samples, the eigenfunctions of k under q are
    continued from the samples by Nyström's method, ψ_j(x) = √S/λ_j Σₛ u_js k(x, xₛ), orthonormal under q. The score's
    coefficients in them follow by Stein's identity, and both need samples only:

    ∇ᵢ log q(x) ≈ Σ_j β_ij ψ_j(x),  β_ij = E_q[ψ_j ∇ᵢ log q] = −E_q[∂ᵢψ_j] ≈ −1/S Σₛ ∂ᵢψ_j(xₛ).

    The sum goes over the largest eigenvalues that together make up `fraction` of them all: fewer leave out detail,
    more let in noise. ℓᵢ is the median distance between samples along dimension i, times √d. The estimate shrinks
    toward zero in the tails, where there are no samples, and is poor unless d is small compared with S.
    """
    scaled, widths = _in_widths(in_float64(samples))
    gram = (-0.5 * torch.cdist(scaled, scaled).square()).exp()
    inverse, vectors = _largest(gram, fraction)
    # at the samples ψ_j is √S u_j; the sum over ∂k(xₛ, ·)/∂xₛ is diag(K 1) X − K X, in units of the widths
    stein = gram @ scaled - gram.sum(-1, keepdim=True) * scaled
    score = vectors @ (inverse[..., None] * (vectors.mT @ stein))
    return (score / widths).to(samples)


def _in_widths(samples: Tensor) -> tuple[Tensor, Tensor]:
    """The samples in units of the kernel's widths ℓ, and these, (..., 1, d); a constant dimension has width 1."""
    number, size = samples.shape[-2:]
    rows, columns = torch.triu_indices(number, number, offset=1, device=samples.device)
    medians = (samples[..., rows, :] - samples[..., columns, :]).abs().median(-2, keepdim=True).values
    widths = medians * size**0.5
    widths = torch.where(widths > 0, widths, torch.ones_like(widths))
    return samples / widths, widths


def _largest(gram: Tensor, fraction: float) -> tuple[Tensor, Tensor]:
    """1/λ, zero for those left out, and the eigenvectors, the largest λ first."""
    roots, vectors = torch.linalg.eigh(gram)
    roots, vectors = roots.flip(-1).clamp_min(0), vectors.flip(-1)
    before = roots.cumsum(-1) - roots
    kept = (before < fraction * roots.sum(-1, keepdim=True)) & (roots > 0)
    return torch.where(kept, 1 / roots, torch.zeros_like(roots)), vectors
