"""FSVI in float64 with settings under which its KL is known."""

import copy
import itertools
import math
from unittest.mock import patch

import torch
from torch.distributions import MultivariateNormal
from torch.func import functional_call, jacrev

import fsvi
from fsvi import contexts, divergences

NUGGET = 1e-2
MODES = ["jvp", "conditional", "exact"]
LABELS = torch.tensor([0, 1, 1, 0])


class Listed(contexts.Context):
    """The given sets, one after the other, again and again."""

    def __init__(self, *sets):
        self.sets = itertools.cycle(sets)

    def sample(self, num, batch):
        return next(self.sets)


def fsvi_on(net, x, likelihood=None, **settings):
    """FSVI in float64 with random standard deviations around 0.1; `settings` are its own and those of its KL."""
    names = ("nugget", "covariance", "num_draws")
    kl = {"nugget": NUGGET, **{name: settings.pop(name) for name in names if name in settings}}
    settings = {"context": contexts.Dataset(x), "num_context": len(x), "divergence": divergences.KL(**kl), **settings}
    method = fsvi.FSVI(net, likelihood or fsvi.Categorical(), **settings)
    with torch.no_grad():
        method.posterior.log_std.normal_(math.log(0.1), 0.5)
    return method


def loss_of(method, x, y):
    """The loss on a minibatch, with a gradient."""
    return sum(method(x, y).values())


def stepped(method, x, y):
    """The terms of the loss, after a backward pass."""
    terms = method(x, y)
    sum(terms.values()).backward()
    return terms


def flat_mean(q):
    """The means of a posterior as one vector."""
    return q.layout.join(mean.detach() for mean in q.means().values())


def begun(method, x, y, num_data=None):
    """The method at the start of training on N examples, all of `x` unless told otherwise."""
    for learner in method.learners():
        learner.num_data = num_data or len(x)
        learner.begin(*learner.check_batch(x, y))
    return method


def fix_noise(method, *noises):
    """Make the posterior draw these, one after the other, again and again; a random one if none is given."""
    noises = noises or [torch.randn_like(method.posterior.log_std)]
    cycle = itertools.cycle(noises)
    method.posterior.noise = lambda generator=None: next(cycle)
    return method.posterior.at(noises[0]).shift


def explicit(net, means, stds, x):
    """N(f(X; μ), J S Jᵀ + nugget·I) over all K·Q values, J by reverse mode over the parameters in `stds`."""
    net = copy.deepcopy(net).eval()

    def outputs(moving):
        return functional_call(net, {**means, **moving}, (x,)).reshape(-1)

    blocks = jacrev(outputs)({name: means[name] for name in stds})
    jacobian = torch.cat([blocks[name].flatten(1) for name in stds], dim=1)
    variances = torch.cat([std.reshape(-1).square() for std in stds.values()])
    eye = torch.eye(len(jacobian), dtype=torch.float64)
    return MultivariateNormal(outputs({}), jacobian * variances @ jacobian.T + NUGGET * eye)


def unit_draws(posterior, draw):
    """What `draw(number)` gives if the noise of a Gauss–Newton posterior runs through the unit vectors.

    Draws are linear in the noise, so these are the columns of a root of the covariance.
    """
    sizes = [math.prod(layer.matrix_shape) for layer in posterior.layers]
    units = iter(torch.eye(sum(sizes), dtype=torch.float64).split(sizes, dim=1))
    with patch("fsvi.posteriors.gauss_newton.normal", lambda shape, *_: next(units).reshape(shape)):
        return draw(sum(sizes))


def laplace_moments(method, x):
    """Mean and covariance of Laplace's outputs at each input, without sampling error."""
    with torch.no_grad():
        draws = unit_draws(method.posterior, lambda num: method._private().functions(num, None)(x))
        mean = method.net.eval()(x)
    centred = draws - mean
    return mean, torch.einsum("sni,snj->nij", centred, centred)
