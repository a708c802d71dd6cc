"""Training steps and predictions of other libraries, each by the library's own tutorial and imported when measured."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from fsvi.inputs import Inputs
from paper.bench.steps import (
    LEARNING_RATE,
    NUM_DATA,
    Action,
    Work,
    adam_step,
    averaging,
    call,
    dropout_prediction,
    predicting,
)


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


def _bayesian_torch_network(work: Work) -> nn.Module:
    _module("bayesian_torch.models.dnn_to_bnn").dnn_to_bnn(work.net, _BAYESIAN_TORCH)
    return _arranged_like(work)


def _bayesian_torch_step(work: Work) -> Action:
    """MFVI by `dnn_to_bnn`: the same loss as fsvi's, layer by layer."""
    library, net = _module("bayesian_torch.models.dnn_to_bnn"), _bayesian_torch_network(work)
    return adam_step(net, lambda: F.cross_entropy(work.outputs(), work.y) + library.get_kl_loss(net) / NUM_DATA)


def _bayesian_torch_prediction(work: Work) -> Action:
    """New parameters are drawn for every chunk of inputs, so a draw is not one function."""
    return predicting(work, averaging(work, _bayesian_torch_network(work)))


def _arranged_like(work: Work) -> nn.Module:
    """The network with the weights of new convolutions in the memory layout of the inputs."""
    x = work.x
    if isinstance(x, Tensor) and x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        for tensor in (*work.net.parameters(), *work.net.buffers()):
            if tensor.dim() == 4:
                tensor.data = tensor.data.to(memory_format=torch.channels_last)
    return work.net


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


_CONVOLUTION = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups")


def _torch_uncertainty_step(work: Work) -> Action:
    """MFVI by `BayesConv2d` and `BayesLinear`, which estimates the KL by the draw instead of its closed form."""
    layers = _module("torch_uncertainty.layers")
    for parent in list(work.net.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) is nn.Linear:
                new = layers.BayesLinear(layer.in_features, layer.out_features, bias=layer.bias is not None)
                setattr(parent, name, new)
            elif type(layer) is nn.Conv2d:
                settings = {setting: getattr(layer, setting) for setting in _CONVOLUTION}
                setattr(parent, name, layers.BayesConv2d(**settings, bias=layer.bias is not None))
    loss = _module("torch_uncertainty.losses").ELBOLoss(
        _arranged_like(work), nn.CrossEntropyLoss(), kl_weight=1 / NUM_DATA, num_samples=1
    )
    return adam_step(work.net, lambda: loss(work.x, work.y))


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
    "torch-uncertainty": _torch_uncertainty_step,
    "ivon-opt": _ivon_step,
}
PREDICTIONS: Mapping[str, tuple[Callable[[Work], Action], int]] = {
    "laplace-torch kron": (_laplace_prediction("kron"), 1),
    "laplace-torch diag": (_laplace_prediction("diag"), 1),
    "bayesian-torch": (_bayesian_torch_prediction, 10),
    "dropout loop": (dropout_prediction, 10),
}
"""Predictions, and their draws."""
