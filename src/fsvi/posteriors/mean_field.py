"""The mean-field Gaussian over a network's parameters, as one flat vector, and Gaussian priors over them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from fsvi.errors import InvalidInputError
from fsvi.networks.devices import normal
from fsvi.networks.network import Network
from fsvi.networks.parameters import deterministic_names, matching_names, padding_rows
from fsvi.serialization import Configurable
from fsvi.validation import check_choice, check_positive, check_type

Stochastic: TypeAlias = Literal["all", "last_layer"] | Sequence[str]
"""Which parameters are random."""

_FEATURE_STD = 0.01


@dataclass(frozen=True)
class FlatLayout:
    """The place of each named tensor in a flat vector.

    Convolution weights are stored in channels-last order, so that their views have the memory layout in which a CPU
    convolves fastest.
    """

    shapes: dict[str, torch.Size]

    @property
    def names(self) -> list[str]:
        """The names of the tensors, in order."""
        return list(self.shapes)

    @cached_property
    def sizes(self) -> list[int]:
        """The number of entries of each tensor."""
        return [shape.numel() for shape in self.shapes.values()]

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The tensors as one vector, a copy without a graph."""
        return self.join(tensors[name].detach() for name in self.shapes) if self.shapes else torch.zeros(0)

    def join(self, tensors: Iterable[Tensor]) -> Tensor:
        """The tensors in the order of `shapes` as one vector."""
        return torch.cat([(t.permute(0, 2, 3, 1) if t.dim() == 4 else t).reshape(-1) for t in tensors])

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """The named tensors as views of `vector`; vectors (m, size) give tensors with a leading dimension m."""
        rows = vector.split(self.sizes, dim=-1) if self.shapes else ()
        lead, views = vector.shape[:-1], {}
        for (name, shape), row in zip(self.shapes.items(), rows, strict=True):
            if len(shape) == 4:
                out, channels, height, width = shape
                views[name] = row.reshape(*lead, out, height, width, channels).movedim(-1, -3)
            else:
                views[name] = row.reshape((*lead, *shape))
        return views


class Draw(NamedTuple):
    """A draw of the stochastic parameters: θ and θ − mean = exp(log_std)·ε by name, and ε as a flat vector."""

    params: dict[str, Tensor]
    shift: dict[str, Tensor]
    noise: Tensor


class MeanField(nn.Module):
    """q(θ) = N(mean, diag(exp(log_std)²)) over some of a network's parameters; the others are points.

    The means are the network's own parameters. `log_std` is one flat vector, so that a draw takes few operations at any
    depth.

    Args:
        module: The network.
        stds: The initial standard deviation of every stochastic tensor, by name.
        lr_scale: The learning rate of `log_std`, as a multiple of that of the means.
    """

    free: Tensor | None
    """1 for entries that are random, 0 for padding rows of embeddings; None if there are no padding rows"""

    def __init__(self, module: nn.Module, stds: Mapping[str, float], lr_scale: float = 1.0) -> None:
        super().__init__()
        own = {name: p for name, p in module.named_parameters() if name in stds}
        self.layout = FlatLayout({name: p.shape for name, p in own.items()})
        self.lr_scale = lr_scale
        places = [name.rpartition(".") for name in self.layout.shapes]
        self._owners = [(module.get_submodule(prefix), own) for prefix, _, own in places]
        like = next(iter(own.values()))
        initial = self.initial(stds)
        filled = [torch.full((p.numel(),), initial[name]) for name, p in own.items()]
        self.log_std = nn.Parameter(torch.cat(filled).log().to(like))
        self.register_buffer("free", _free_entries(module, self.layout), persistent=False)

    def initial(self, stds: Mapping[str, float]) -> dict[str, float]:
        """The values of exp(log_std) at which every tensor has the standard deviation in `stds`."""
        return dict(stds)

    def means(self) -> dict[str, Tensor]:
        """The means, which are the network's own parameters, by name."""
        values = [layer._parameters[name] for layer, name in self._owners]
        return dict(zip(self.layout.shapes, values, strict=True))  # type: ignore[arg-type]

    def stds(self) -> dict[str, Tensor]:
        """The standard deviations, by name."""
        return {name: std.detach().clone() for name, std in self.layout.views(self.log_std.exp()).items()}

    def noise(self, generator: torch.Generator | None = None, *num: int) -> Tensor:
        """ε ~ N(0, I), zero where nothing is random, `num` times; None draws from torch's global generator."""
        noise = normal((*num, *self.log_std.shape), generator, self.log_std.dtype, self.log_std.device)
        return noise if self.free is None else noise.mul_(self.free)

    def draw(self, generator: torch.Generator | None = None) -> Draw:
        """A draw θ ~ q with gradients."""
        return self.at(self.noise(generator))

    def draws(self, num: int, generator: torch.Generator) -> dict[str, Tensor]:
        """`num` draws without gradients, by name: each (num, ...)."""
        shifts = self.layout.views(self.noise(generator, num).mul_(self.log_std.detach().exp()))
        return {name: mean.detach() + shifts[name] for name, mean in self.means().items()}

    def at(self, noise: Tensor) -> Draw:
        """The parameters mean + exp(log_std)·`noise`, with gradients."""
        shift = self.layout.views(self.log_std.exp() * noise)
        return Draw({name: mean + shift[name] for name, mean in self.means().items()}, shift, noise)


class Stds(Configurable):
    """How the standard deviations of a posterior over parameters start, and how fast they learn.

    Args:
        init: The initial standard deviation; a pair gives those of the feature layers and of the last layer. None is
            the pair (0.01, 1/√features), with which function values have a variance of order one.
        lr_scale: The learning rate of the log standard deviations, as a multiple of that of the means.
    """

    def __init__(self, init: float | tuple[float, float] | None = None, lr_scale: float = 3.0) -> None:
        self.init = _check_init(init)
        self.lr_scale = check_positive("lr_scale", lr_scale, zero=True)

    def initial(self, names: Sequence[str], network: Network) -> dict[str, float]:
        """The initial standard deviation of each named parameter of the network."""
        default = (_FEATURE_STD, network.num_features**-0.5)
        init = default if self.init is None else self.init
        features, last = init if isinstance(init, tuple) else (init, init)
        return {name: last if name in network.head_names else features for name in names}

    def single(self) -> float:
        """The initial standard deviation for methods that treat all layers alike."""
        if isinstance(self.init, float):
            return self.init
        raise InvalidInputError(
            f"stds=Stds(init={self.init!r}) must give one number: this method does not tell layers apart."
        )


def check_stds(stds: Stds | None, default: Stds) -> Stds:
    """An argument `stds`; None is the method's own choice."""
    if stds is None:
        return default
    check_type("stds", stds, Stds, "fsvi.posteriors.Stds(init=..., lr_scale=...)")
    return stds


def check_stochastic(stochastic: Any) -> Stochastic:
    """An argument `stochastic`: "all", "last_layer", or a list of names and patterns."""
    if isinstance(stochastic, str):
        return check_choice("stochastic", stochastic, ("all", "last_layer"))
    if isinstance(stochastic, (list, tuple)) and stochastic and all(isinstance(each, str) for each in stochastic):
        return list(stochastic)
    raise InvalidInputError(f"stochastic={stochastic!r} must be 'all', 'last_layer' or a list of names and patterns.")


def mean_field(
    network: Network, stds: Stds, stochastic: Stochastic = "all", family: type[MeanField] = MeanField
) -> MeanField:
    """The mean-field posterior over the parameters that `stochastic` names, in the network's order.

    A name is that of a layer or a parameter, in which `*` stands for anything; the last layer is always random. The
    scale and shift of BatchNorm and InstanceNorm never are.
    """
    if stochastic == "last_layer":
        names = network.head_names
    else:
        names = prior_names(network.module)
        if stochastic != "all":
            names = matching_names(network.module, stochastic, names, network.head_names)
    return family(network.module, stds.initial(names, network), stds.lr_scale)


def _free_entries(module: nn.Module, layout: FlatLayout) -> Tensor | None:
    rows = {name: row for name, row in padding_rows(module).items() if name in layout.shapes}
    if not rows:
        return None
    ones = {name: torch.ones_like(module.get_parameter(name).detach()) for name in layout.shapes}
    for name, row in rows.items():
        ones[name][row] = 0
    return layout.flatten(ones)


def _check_init(init: Any) -> float | tuple[float, float] | None:
    if init is None:
        return None
    if isinstance(init, (tuple, list)):
        if len(init) != 2:
            raise InvalidInputError(f"init={init!r} must be a number, or a pair: for the feature layers, and the last.")
        features, last = (check_positive("init", value) for value in init)
        return features, last
    return float(check_positive("init", init))


# Gaussian priors over parameters --------------------------------------------------------------------------------------


def prior_names(net: nn.Module) -> list[str]:
    """The parameters that have a prior: all trainable ones except the scale and shift of BatchNorm and InstanceNorm."""
    skip = deterministic_names(net)
    names = [name for name, p in net.named_parameters() if p.requires_grad and name not in skip]
    if not names:
        raise InvalidInputError(
            "every parameter of the network is frozen: leave requires_grad=True on what is to learn."
        )
    return names


def negative_log_normal(tensors: Iterable[Tensor], variance: float) -> Tensor:
    """−log N(·; 0, variance·I) over the entries of all tensors, up to a constant."""
    return 0.5 / variance * torch.stack([tensor.square().sum() for tensor in tensors]).sum()


def normal_kl(means: Iterable[Tensor], log_std: Tensor, prior_variance: float) -> Tensor:
    """KL(N(mean, diag(exp(log_std)²)) ‖ N(0, prior_variance·I)), a scalar.

    ½ Σᵢ [(stdᵢ² + meanᵢ²) / prior_variance − 1 + log prior_variance − 2 log_stdᵢ]
    """
    squares = (2 * log_std).exp().sum() + sum(mean.square().sum() for mean in means)
    return 0.5 * (squares / prior_variance + log_std.numel() * (math.log(prior_variance) - 1)) - log_std.sum()
