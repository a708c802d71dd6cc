"""What the benchmark compares fsvi with: steps and predictions of other libraries, and some in plain PyTorch.

No other library is needed: each is imported when it is measured. Every adapter follows the library's own tutorial.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from fsvi.inputs import Inputs
from fsvi.validation import first_line
from paper.bench.by_hand import (
    LEARNING_RATE,
    NUM_DATA,
    Action,
    Work,
    adam_step,
    averaging,
    dropout_prediction,
    dropout_step,
    longer_step,
    predicting,
)


@dataclass(frozen=True)
class Peer:
    """A training step or a prediction of another library, or of plain PyTorch.

    Attributes:
        library: The library's name.
        module: What is imported.
        title: The name of the row.
        differs: What it leaves out or does otherwise than fsvi, according to its code.
        make: Makes the action that is timed.
        num_samples: Draws per prediction.
    """

    library: str
    module: str
    title: str
    differs: str
    make: Callable[[Work], Action]
    num_samples: int = 1


def why_missing(peer: Peer) -> str | None:
    """A sentence that says why a library cannot be used; None if it can."""
    try:
        _module(peer.module)
    except Exception as error:  # a library that does not fit the others can fail in any way when it is imported
        if isinstance(error, ModuleNotFoundError) and error.name == peer.module.partition(".")[0]:
            return f"{peer.library} is not installed."
        return f"{peer.library} cannot be imported: {first_line(error)}."
    return None


def _module(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module(name)


# bayesian-torch -------------------------------------------------------------------------------------------------------

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
    library, net = _module("bayesian_torch.models.dnn_to_bnn"), _bayesian_torch_network(work)
    return adam_step(net, lambda: F.cross_entropy(work.outputs(), work.y) + library.get_kl_loss(net) / NUM_DATA)


def _bayesian_torch_prediction(work: Work) -> Action:
    return predicting(work, averaging(work, _bayesian_torch_network(work)))


def _arranged_like(work: Work) -> nn.Module:
    """The network with the weights of new convolutions in the memory layout of the inputs."""
    x = work.x
    if isinstance(x, Tensor) and x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        for tensor in (*work.net.parameters(), *work.net.buffers()):
            if tensor.dim() == 4:
                tensor.data = tensor.data.to(memory_format=torch.channels_last)
    return work.net


# ivon-opt -------------------------------------------------------------------------------------------------------------


def _ivon_step(work: Work) -> Action:
    optimizer = _module("ivon").IVON(work.net.parameters(), lr=LEARNING_RATE, ess=NUM_DATA)
    work.net.train()

    def act() -> None:
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            F.cross_entropy(work.outputs(), work.y).backward()
        optimizer.step()

    return act


# posteriors -----------------------------------------------------------------------------------------------------------


def _posteriors_step(work: Work) -> Action:
    library, torchopt = _module("posteriors"), _module("torchopt")
    work.net.train()

    def log_posterior(params: dict[str, Tensor], batch: tuple[Inputs, Tensor]) -> tuple[Tensor, Tensor]:
        x, y = batch
        inputs = ((x,), {}) if isinstance(x, Tensor) else ((), x.tree)
        log_likelihood = -F.cross_entropy(functional_call(work.net, params, *inputs), y)
        return log_likelihood + library.diag_normal_log_prob(params) / NUM_DATA, torch.tensor([])

    transform = library.vi.diag.build(
        log_posterior, torchopt.adam(lr=LEARNING_RATE), temperature=1 / NUM_DATA, init_log_sds=-4.0
    )
    state = transform.init({name: parameter.detach() for name, parameter in work.net.named_parameters()})

    def act() -> None:
        nonlocal state
        state, _ = transform.update(state, (work.x, work.y), inplace=True)

    return act


# torch-uncertainty ----------------------------------------------------------------------------------------------------

_CONVOLUTION = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups")


def _torch_uncertainty_step(work: Work) -> Action:
    loss = _module("torch_uncertainty.losses").ELBOLoss(
        _with_bayesian_layers(work), nn.CrossEntropyLoss(), kl_weight=1 / NUM_DATA, num_samples=1
    )
    return adam_step(work.net, lambda: loss(work.x, work.y))


def _with_bayesian_layers(work: Work) -> nn.Module:
    """The network with torch-uncertainty's layers in place of its dense layers and convolutions."""
    layers = _module("torch_uncertainty.layers")
    for parent in list(work.net.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) is nn.Linear:
                new = layers.BayesLinear(layer.in_features, layer.out_features, bias=layer.bias is not None)
                setattr(parent, name, new)
            elif type(layer) is nn.Conv2d:
                settings = {setting: getattr(layer, setting) for setting in _CONVOLUTION}
                setattr(parent, name, layers.BayesConv2d(**settings, bias=layer.bias is not None))
    return _arranged_like(work)


def _torch_uncertainty_dropout(work: Work) -> Action:
    wrap = _module("torch_uncertainty.methods").mc_dropout
    net = wrap(work.net, num_estimators=work.num_samples, on_batch=True).eval()
    act = predicting(work, lambda x: net(x).unflatten(0, (work.num_samples, -1)).softmax(-1).mean(0))
    net.eval()
    return act


# laplace-torch --------------------------------------------------------------------------------------------------------


def _laplace_prediction(structure: str) -> Callable[[Work], Action]:
    def make(work: Work) -> Action:
        settings = {"subset_of_weights": "last_layer", "hessian_structure": structure}
        model = _module("laplace").Laplace(copy.deepcopy(work.net).eval(), "classification", **settings)
        few = slice(128)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(DataLoader(TensorDataset(work.x[few], work.y[few]), batch_size=128))
        return predicting(work, lambda x: model(x, pred_type="glm", link_approx="probit"))

    return make


# All of them ----------------------------------------------------------------------------------------------------------

_LAST_LAYER = "It keeps less of the last layer's curvature, {}; fsvi keeps all of it, with covariances between outputs."

STEPS: Mapping[str, Peer] = {
    "longer by hand": Peer(
        library="torch",
        module="torch",
        title="maximum likelihood with B + K examples, written by hand",
        differs="It has K more examples instead of context points, and no FSVI: about what the passes alone cost.",
        make=longer_step,
    ),
    "dropout by hand": Peer(
        library="torch",
        module="torch",
        title="MC dropout, `F.dropout`",
        differs="It has no prior over the weights, and neither the loss nor the gradient is checked for NaN.",
        make=dropout_step,
    ),
    "bayesian-torch": Peer(
        library="bayesian-torch",
        module="bayesian_torch.models.dnn_to_bnn",
        title="MFVI, `dnn_to_bnn`",
        differs="It computes the same loss, layer by layer; what makes it faster was not examined.",
        make=_bayesian_torch_step,
    ),
    "posteriors": Peer(
        library="posteriors",
        module="posteriors",
        title="VI, `vi.diag`",
        differs="It estimates the KL by the draw instead of its closed form.",
        make=_posteriors_step,
    ),
    "torch-uncertainty": Peer(
        library="torch-uncertainty",
        module="torch_uncertainty.layers",
        title="MFVI, `BayesConv2d` and `BayesLinear`",
        differs="It estimates the KL by the draw instead of its closed form.",
        make=_torch_uncertainty_step,
    ),
    "ivon-opt": Peer(
        library="ivon-opt",
        module="ivon",
        title="IVON",
        differs="Its step stops at the likelihood; fsvi's also computes the KL, to report it, and standard deviations.",
        make=_ivon_step,
    ),
}
"""Training steps, by name."""

PREDICTIONS: Mapping[str, Peer] = {
    "laplace-torch kron": Peer(
        library="laplace-torch",
        module="laplace",
        title="Laplace, last layer, Kronecker factors, probit",
        differs=_LAST_LAYER.format("Kronecker factors"),
        make=_laplace_prediction("kron"),
    ),
    "laplace-torch diag": Peer(
        library="laplace-torch",
        module="laplace",
        title="Laplace, last layer, diagonal, probit",
        differs=_LAST_LAYER.format("a diagonal"),
        make=_laplace_prediction("diag"),
    ),
    "bayesian-torch": Peer(
        library="bayesian-torch",
        module="bayesian_torch.models.dnn_to_bnn",
        title="MFVI, passes in a loop",
        differs="It draws new parameters for every chunk of inputs, so that a draw is not one function.",
        make=_bayesian_torch_prediction,
        num_samples=10,
    ),
    "dropout loop": Peer(
        library="torch",
        module="torch",
        title="MC dropout, passes in a loop",
        differs="It draws new masks for every input, so that a draw is not one function.",
        make=dropout_prediction,
        num_samples=10,
    ),
    "torch-uncertainty": Peer(
        library="torch-uncertainty",
        module="torch_uncertainty.methods",
        title="MC dropout, `mc_dropout`",
        differs="It draws new masks for every input, so that a draw is not one function.",
        make=_torch_uncertainty_dropout,
        num_samples=10,
    ),
}
"""Predictions, by name."""
