"""The mean-field Gaussian over a network's parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from fsvi.errors import InvalidInputError
from fsvi.networks.devices import normal
from fsvi.networks.network import Network
from fsvi.networks.parameters import matching_names, padding_rows
from fsvi.posteriors.gaussian_prior import prior_names
from fsvi.posteriors.layout import FlatLayout
from fsvi.serialization import Configurable
from fsvi.validation import check_choice, check_positive, check_type

Stochastic: TypeAlias = Literal["all", "last_layer"] | Sequence[str]
"""Which parameters are random."""

_FEATURE_STD = 0.01


class Draw(NamedTuple):
    """A draw of the stochastic parameters θ = mean + exp(log_std)·ε.

    Attributes:
        params: θ, by name.
        shift: θ − mean, by name.
        noise: ε, as a flat vector.
    """

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
        channels_last: Whether convolution weights are kept in channels-last order.
    """

    free: Tensor | None
    """1 for entries that are random, 0 for padding rows of embeddings; None if there are no padding rows"""

    def __init__(
        self, module: nn.Module, stds: Mapping[str, float], lr_scale: float = 1.0, channels_last: bool = True
    ) -> None:
        super().__init__()
        own = {name: p for name, p in module.named_parameters() if name in stds}
        self.layout = FlatLayout({name: p.shape for name, p in own.items()}, channels_last)
        self.lr_scale = lr_scale
        self._owners = [_owner(module, name) for name in self.layout.shapes]
        like = next(iter(own.values()))
        self.log_std = nn.Parameter(self.layout.fill(self.initial(stds)).log().to(like))
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
        means = self.means()
        parts = _Shift.apply(self.log_std, noise, self.layout, *means.values())
        return Draw(dict(zip(means, parts, strict=False)), dict(zip(means, parts[len(means) :], strict=True)), noise)

    def log_stds(self, names: Sequence[str]) -> list[Tensor]:
        """The log standard deviations of the named parameters, all stochastic."""
        logs = self.layout.views(self.log_std)
        return [logs[name] for name in names]


class _Shift(torch.autograd.Function):
    """(log_std, ε, means) → the tensors of mean + d, and those of d = exp(log_std)·ε.

    With gradients g at mean + d and h at d, the gradients are g for the means and (g + h)·d for log_std, each summed
    over all uses of a tensor by autograd. Plain operations would make a vector as long as the network for each of them.
    """

    @staticmethod
    def forward(ctx: Any, log_std: Tensor, noise: Tensor, layout: FlatLayout, *means: Tensor) -> tuple[Tensor, ...]:
        shift = log_std.exp().mul_(noise)
        ctx.save_for_backward(shift)
        ctx.layout = layout
        ctx.set_materialize_grads(False)
        views = layout.views(shift).values()
        return *(mean + view for mean, view in zip(means, views, strict=True)), *layout.views(shift.clone()).values()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        (shift,), layout, num = ctx.saved_tensors, ctx.layout, len(gradients) // 2
        total = shift.new_zeros(())
        for half in (gradients[:num], gradients[num:]):
            if any(each is not None for each in half):
                pairs = zip(half, layout.shapes.values(), strict=True)
                total = total + layout.join(shift.new_zeros(s) if g is None else g for g, s in pairs)
        return total * shift, None, None, *gradients[:num]


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
    return family(network.module, stds.initial(names, network), stds.lr_scale, network.channels_last)


def _owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The layer that holds a parameter, and the parameter's name there."""
    prefix, _, own = name.rpartition(".")
    return module.get_submodule(prefix), own


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
