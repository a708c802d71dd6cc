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
    values = in_float64(samples)
    number, size = values.shape[-2:]
    rows, columns = torch.triu_indices(number, number, offset=1, device=values.device)
    medians = (values[..., rows, :] - values[..., columns, :]).abs().median(-2, keepdim=True).values
    widths = torch.where(medians > 0, medians * size**0.5, 1.0)  # of the kernel, in each dimension
    scaled = values / widths
    gram = (-0.5 * torch.cdist(scaled, scaled).square()).exp()
    roots, vectors = torch.linalg.eigh(gram)
    roots, vectors = roots.flip(-1).clamp_min(0), vectors.flip(-1)
    kept = (roots.cumsum(-1) - roots < fraction * roots.sum(-1, keepdim=True)) & (roots > 0)
    inverse = torch.where(kept, 1 / roots, 0.0)
    # at the samples ψ_j is √S u_j; the sum over ∂k(xₛ, ·)/∂xₛ is diag(K 1) X − K X, in units of the widths
    stein = gram @ scaled - gram.sum(-1, keepdim=True) * scaled
    score = vectors @ (inverse[..., None] * (vectors.mT @ stein))
    return (score / widths).to(samples)
