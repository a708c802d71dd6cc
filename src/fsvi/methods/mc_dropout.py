"""Monte-Carlo dropout (Gal & Ghahramani; ICML 2016)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fsvi.errors import InvalidInputError
from fsvi.inputs import num_rows
from fsvi.likelihoods import Likelihood
from fsvi.methods.base import Functions, Method, network_functions
from fsvi.methods.map import check_variance, prior_term
from fsvi.networks.calls import repeatable
from fsvi.networks.network import Network
from fsvi.validation import check_fraction

_WEIGHT_LAYERS = (nn.Linear, nn.modules.conv._ConvNd)
_DROPOUTS = nn.modules.dropout._DropoutNd
_CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.FeatureAlphaDropout)
_ALPHA = -1.7580993408473766
"""What self-normalizing dropout sets units to: the limit of SELU toward −∞."""

Change = Callable[[nn.Module, Tensor], Tensor]


class MCDropout(Method):
    """Minimizes −1/B Σ log p(y|f(x; θ, z)) − 1/N log N(θ; 0, prior_variance·I) with new dropout masks z for every
    example, and predicts with 1/S Σₛ p(y|f(x; θ, zₛ)), dropout still on.

    The masks are those of the network's own dropout layers, at their own rates. A network without dropout layers gets
    dropout before every dense layer and convolution except the first that it calls. In prediction a draw is one mask
    for all inputs, so that it is a function of the input. Dropout inside attention and recurrent layers, which is not a
    layer of its own, acts in training only.

    Args:
        net: The network, an `nn.Module` or an `fsvi.Network`; it is copied.
        likelihood: The distribution of targets given the network's outputs.
        rate: The dropout rate for networks without dropout layers; with 0 this is `MAP`. None is 0.1, or 0.05 for
            numbers, whose noise is hard to tell from the masks'.
        prior_variance: The variance of the Gaussian prior over parameters; None leaves it out.

    Examples:
        >>> method = fsvi.MCDropout(fsvi.networks.mlp(2, (20,), 2), fsvi.Categorical(), rate=0.1)
        >>> history = fsvi.fit(method, fsvi.data.two_moons(100, noise=0.1, seed=0), epochs=20, seed=0)
    """

    _takes_positions = True

    def __init__(
        self,
        net: nn.Module | Network,
        likelihood: Likelihood,
        *,
        rate: float | None = None,
        prior_variance: float | None = 1.0,
    ) -> None:
        super().__init__(net, likelihood)
        self.rate = (0.05 if likelihood.is_numeric else 0.1) if rate is None else check_fraction("rate", rate)
        self.prior_variance = check_variance(prior_variance)
        self.build(self.network)

    def forward(self, x: Any, y: Tensor) -> dict[str, Tensor]:
        """The negative log-likelihood under random masks, and the prior."""
        return {"nll": self.likelihood.nll(self._outputs(x), y), **prior_term(self, len(x))}

    def _outputs(self, x: Any) -> Tensor:
        if self._own_layers() or not self.training or self.rate == 0:
            return self.network(x)
        first: list[nn.Module] = []  # a checkpoint that computes its part again does not start with the first layer
        with repeatable(lambda: self._changing_inputs(lambda _, h: _dropped(h, self.rate), first)):
            return self.network(x)

    def functions(self, num_samples: int, generator: torch.Generator) -> Functions:
        """The network under `num_samples` sets of masks; a network without dropout is a single draw."""
        if not self._own_layers() and self.rate == 0:
            return network_functions(self.network, {})
        drawn = [_Masks(self.rate, generator) for _ in range(num_samples)]

        def masked(x: Any, masks: _Masks) -> Tensor:
            masks.rewind(num_rows(x))
            with self._changing_inputs(masks, []):
                return self.network(x)

        return lambda x: torch.stack([masked(x, masks) for masks in drawn])

    def _own_layers(self) -> list[nn.Module]:
        return [layer for layer in self.net.modules() if isinstance(layer, _DROPOUTS) and layer.p > 0]

    @contextmanager
    def _changing_inputs(self, change: Change, first: list[nn.Module]) -> Iterator[None]:
        """A context in which `change` is applied to the inputs h of dropout layers, or of all weight layers that are
        called but the first, which is kept in `first`.
        """
        own = self._own_layers()
        layers = own or [layer for layer in self.net.modules() if isinstance(layer, _WEIGHT_LAYERS)]

        def hook(layer: nn.Module, args: Any) -> Any:
            if not own and not first:
                first.append(layer)
            return None if layer in first else (change(layer, args[0]), *args[1:])

        with ExitStack() as hooks:
            for layer in layers:
                hooks.enter_context(layer.register_forward_pre_hook(hook))
            yield


def _dropped(h: Tensor, rate: float) -> Tensor:
    """`F.dropout`, whose Bernoulli numbers take a third of a CNN's step on a CPU."""
    kept = torch.rand_like(h, dtype=torch.float32).ge_(rate).div_(1 - rate)
    return h * kept.to(h.dtype)


class _Masks:
    """The masks of one draw, in the order in which the network calls its dropout. Each is drawn when first needed.

    Given its mask, dropout is affine in its input, a·h + b. So every kind of dropout layer keeps its meaning: single
    units, whole channels, or the units of a self-normalizing network.
    """

    def __init__(self, rate: float, generator: torch.Generator) -> None:
        self._rate, self._generator = rate, generator
        self._affine: list[tuple[Tensor, Tensor]] = []
        self.rewind(1)

    def rewind(self, num: int) -> None:
        """A pass over `num` inputs starts."""
        self._num, self._next = num, 0

    def __call__(self, layer: nn.Module, h: Tensor) -> Tensor:
        if h.shape[0] % self._num:
            raise InvalidInputError(
                f"dropout acts on a tensor of shape {tuple(h.shape)} for {self._num} inputs: MCDropout draws one mask "
                "for all inputs, so their dimension must come first."
            )
        if self._next == len(self._affine):
            self._affine.append(self._draw(layer, h))
        scale, shift = self._affine[self._next]
        self._next += 1
        return h * scale + shift

    def _draw(self, layer: nn.Module, h: Tensor) -> tuple[Tensor, Tensor]:
        """a and b of a mask for one input."""
        rate = layer.p if isinstance(layer, _DROPOUTS) else self._rate
        shape = (1, h.shape[1], *[1] * (h.dim() - 2)) if isinstance(layer, _CHANNELS) else (1, *h.shape[1:])
        kept = torch.rand(shape, generator=self._generator, device=h.device).ge(rate).to(h.dtype)
        if not isinstance(layer, (nn.AlphaDropout, nn.FeatureAlphaDropout)):
            return kept / (1 - rate), torch.zeros_like(kept)
        scale = ((1 - rate) * (1 + rate * _ALPHA**2)) ** -0.5
        return scale * kept, scale * _ALPHA * (1 - kept - rate)
