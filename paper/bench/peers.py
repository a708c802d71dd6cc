"""Training steps and predictions of other libraries, each by the library's own tutorial and imported when measured."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from fsvi.inputs import Inputs
from paper.bench.steps import LEARNING_RATE, NUM_DATA, Action, Work, adam_step, call, predicting


def _module(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module(name)


_BAYESIAN_TORCH = {
    "prior_mu": 0.0,
    "prior_sigma": 1.0,
    "posterior_mu_init": 0.0,
    "posterior_rho_init": -4.0,
    "type": "Reparameterization",
    "moped_enable": False,
}


def _bayesian_torch_step(work: Work) -> Action:
    """MFVI by `dnn_to_bnn`: the same loss as fsvi's, layer by layer."""
    library, net = _module("bayesian_torch.models.dnn_to_bnn"), work.net
    library.dnn_to_bnn(net, _BAYESIAN_TORCH)
    x = work.x
    if isinstance(x, Tensor) and x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return adam_step(net, lambda: F.cross_entropy(work.outputs(), work.y) + library.get_kl_loss(net) / NUM_DATA)


def _ivon_step(work: Work) -> Action:
    """IVON; the step stops at the likelihood, fsvi's also computes the KL, to report it."""
    optimizer = _module("ivon").IVON(work.net.parameters(), lr=LEARNING_RATE, ess=NUM_DATA)
    work.net.train()

    def act() -> None:
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            F.cross_entropy(work.outputs(), work.y).backward()
        optimizer.step()

    return act


def _posteriors_step(work: Work) -> Action:
    """VI by `vi.diag`, which estimates the KL by the draw instead of its closed form."""
    library, torchopt = _module("posteriors"), _module("torchopt")
    work.net.train()

    def log_posterior(params: dict[str, Tensor], batch: tuple[Inputs, Tensor]) -> tuple[Tensor, Tensor]:
        log_likelihood = -F.cross_entropy(call(work.net, batch[0], params), batch[1])
        return log_likelihood + library.diag_normal_log_prob(params) / NUM_DATA, torch.tensor([])

    transform = library.vi.diag.build(
        log_posterior, torchopt.adam(lr=LEARNING_RATE), temperature=1 / NUM_DATA, init_log_sds=-4.0
    )
    state = transform.init({name: parameter.detach() for name, parameter in work.net.named_parameters()})

    def act() -> None:
        nonlocal state
        state, _ = transform.update(state, (work.x, work.y), inplace=True)

    return act


def _laplace_prediction(structure: str) -> Callable[[Work], Action]:
    """Laplace on the last layer with less of its curvature than fsvi keeps."""

    def make(work: Work) -> Action:
        settings = {"subset_of_weights": "last_layer", "hessian_structure": structure}
        model = _module("laplace").Laplace(copy.deepcopy(work.net).eval(), "classification", **settings)
        few = slice(128)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(DataLoader(TensorDataset(work.x[few], work.y[few]), batch_size=128))
        return predicting(work, lambda x: model(x, pred_type="glm", link_approx="probit"))

    return make


STEPS: Mapping[str, Callable[[Work], Action]] = {
    "bayesian-torch": _bayesian_torch_step,
    "posteriors": _posteriors_step,
    "ivon-opt": _ivon_step,
}
PREDICTIONS: Mapping[str, Callable[[Work], Action]] = {
    "laplace-torch kron": _laplace_prediction("kron"),
    "laplace-torch diag": _laplace_prediction("diag"),
}
