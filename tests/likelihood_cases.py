"""What the tests of all likelihoods share, and a prediction of every kind with targets that it can have."""

import torch

import fsvi

S, N, Q = 7, 5, 3


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


def made(kind: str, outputs: int = Q, seed: int = 0) -> fsvi.likelihoods.Predictive:
    torch.manual_seed(seed)
    f = torch.randn(S, N, outputs, dtype=torch.float64)
    noise = torch.rand(outputs, dtype=torch.float64) + 0.3
    if kind == "classes":
        return fsvi.likelihoods.CategoricalPredictive(2 * f)
    if kind == "labels":
        return fsvi.likelihoods.BernoulliPredictive(2 * f)
    if kind == "gaussian":
        return fsvi.likelihoods.GaussianPredictive(f, noise.square())
    if kind == "counts":
        return fsvi.likelihoods.PoissonPredictive(f + 1)
    if kind == "student":
        return fsvi.likelihoods.StudentTPredictive(f, noise, 3 + noise)
    return fsvi.likelihoods.MixturePredictive(torch.distributions.Laplace, loc=f, scale=noise)


def targets(kind: str, outputs: int = Q) -> torch.Tensor:
    torch.manual_seed(1)
    if kind == "classes":
        return torch.arange(N) % outputs
    if kind == "labels":
        return torch.randint(2, (N, outputs)).double()
    return torch.randint(6, (N, outputs)).double() if kind == "counts" else torch.randn(N, outputs).double()


KINDS = ("classes", "labels", "gaussian", "counts", "student", "own")
NUMERIC = ("gaussian", "counts", "student", "own")
