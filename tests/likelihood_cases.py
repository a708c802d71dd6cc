"""What the tests of all likelihoods share."""

import torch

N, Q = 6, 3


def bound(likelihood, outputs=Q):
    likelihood.bind(outputs)
    return likelihood.double()


def expected_curvature(likelihood, f, targets, weights):
    """The Hessian of −log p(y|f) by one input's f, averaged over targets y with these weights: the oracle."""
    hessians = [torch.func.hessian(lambda f, y=y: likelihood.nll(f[None], y[None]))(f) for y in targets]
    return sum(weight * hessian for weight, hessian in zip(weights, hessians, strict=True))


def outputs(*shape, scale=1.0):
    """Outputs of a network in float64."""
    return scale * torch.randn(*shape, N, Q, dtype=torch.float64)
