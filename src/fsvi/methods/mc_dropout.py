"""Monte-Carlo dropout (Gal & Ghahramani; ICML 2016)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fsvi.errors import InvalidInputError
from fsvi.export import Functions
from fsvi.inputs import num_rows
from fsvi.likelihoods import Likelihood
from fsvi.methods.drawing import Draw
from fsvi.methods.map import PointEstimate
from fsvi.networks.checkpoints import repeatable
from fsvi.networks.devices import forked_random, seed_random
from fsvi.networks.dropout import drop
from fsvi.networks.modes import evaluating
from fsvi.networks.network import Network
from fsvi.networks.shared_start import SharedStart
from fsvi.validation import check_fraction

_WEIGHT_LAYERS = (nn.Linear, nn.modules.conv._ConvNd)


class MCDropout(PointEstimate):
    """Minimizes −1/B Σ log p(y|f(x; θ, z)) − 1/N log N(θ; 0, prior_variance·I) with new dropout masks z for every
    example, and predicts with 1/S Σₛ p(y|f(x; θ, zₛ)), dropout still on.

    The masks are those of the network's own dropout layers, at their own rates. A network without dropout layers gets
    dropout before every dense layer and convolution except the first that it calls. In prediction a draw is one mask
    for all inputs, so that it is a function of the input. Dropout inside attention and recurrent layers, which is not a
    layer of its own, acts in training only.

    Args:
        net: The network, an `nn.Module` or an `fsvi.Network`; it is copied.
        likelihood: The distribution of targets given the network's outputs.
        rate: The dropout rate for networks without dropout layers; with 0 this is `MAP`.
        prior_variance: The variance of the Gaussian prior over parameters; None leaves it out.
    """

    takes_positions = True

    def __init__(
        self,
        net: nn.Module | Network,
        likelihood: Likelihood,
        *,
        rate: float = 0.1,
        prior_variance: float | None = 1.0,
    ) -> None:
        super().__init__(net, likelihood, prior_variance)
        self.rate = check_fraction("rate", rate)
        self._own = [m for m in self.net.modules() if isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0]
        self._sites: dict[nn.Module, nn.Module] = {}
        self.build(self.network)

    def see(self, x: Tensor) -> None:
        """Find where dropout acts: the order in which layers are called is known only now."""
        super().see(x)
        if self._own:  # copies of these layers that are always on
            self._sites = {layer: copy.deepcopy(layer).train() for layer in self._own}
        elif self.rate > 0:
            layers = called_layers(self.network, self.network.arranged(x))
            self._sites = dict.fromkeys(layers[1:], nn.Dropout(self.rate))

    def terms_without_prior(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """The negative log-likelihood under random masks."""
        if self._own or not self.training:
            return super().terms_without_prior(x, y)
        with repeatable(lambda: changing_inputs(self._sites, lambda layer, h: drop(h, self.rate))):
            return super().terms_without_prior(x, y)

    def function_draws(self, x: Tensor, num_samples: int, generator: torch.Generator, batch_size: int) -> Tensor:
        """The network under `num_samples` sets of masks; a network without dropout has a single draw."""
        if not self._sites:
            return super().function_draws(x, num_samples, generator, batch_size)
        with forked_random(self.device):
            seed_random(int(torch.randint(2**62, (), generator=generator, device=generator.device)), self.device)
            return self.evaluate((self._draw(_Masks()) for _ in range(num_samples)), x, batch_size)

    def fixed_draws(self, x: Any, num_samples: int, generator: torch.Generator) -> Functions:
        """The network under `num_samples` sets of masks."""
        if not self._sites:
            return super().fixed_draws(x, num_samples, generator)
        drawn = [_Masks() for _ in range(num_samples)]
        with forked_random(self.device):
            seed_random(int(torch.randint(2**62, (), generator=generator, device=generator.device)), self.device)
            for masks in drawn:
                self._masked(x, masks)
        return lambda x: torch.stack([self._masked(x, masks) for masks in drawn])

    def _draw(self, masks: _Masks) -> Draw:
        return Draw(lambda x, start: self._masked(x, masks, start), masks.size)

    def _masked(self, x: Tensor, masks: _Masks, start: SharedStart | None = None) -> Tensor:
        masks.rewind(num_rows(x), start)
        with changing_inputs(self._sites, masks):
            return self.network(x)


class _Masks:
    """The masks of one draw, in the order in which the network calls its dropout. Each is drawn when first needed.

    Given its mask, dropout is affine in its input, a·h + b: zeros give b, and ones give a + b. So every kind of dropout
    layer keeps its meaning: single units, whole channels, or the units of a self-normalizing network.
    """

    def __init__(self) -> None:
        self._affine: list[tuple[Tensor, Tensor]] = []
        self.rewind(1)

    def size(self) -> int:
        """The numbers of the masks that were drawn."""
        return sum(scale.numel() + shift.numel() for scale, shift in self._affine)

    def rewind(self, num: int, start: SharedStart | None = None) -> None:
        """A pass over `num` inputs starts; the first mask ends what it shares with others."""
        self._num, self._next, self._start = num, 0, start

    def __call__(self, layer: nn.Module, h: Tensor) -> Tensor:
        if self._start is not None:
            self._start.end()
        if h.shape[0] % self._num:
            raise InvalidInputError(
                f"dropout acts on a tensor of shape {tuple(h.shape)} for {self._num} inputs: MCDropout draws one mask "
                "for all inputs, so their dimension must come first."
            )
        if self._next == len(self._affine):
            self._affine.append(_affine(layer, h))
        scale, shift = self._affine[self._next]
        self._next += 1
        return h * scale + shift


@contextmanager
def changing_inputs(
    sites: Mapping[nn.Module, nn.Module], change: Callable[[nn.Module, Tensor], Tensor]
) -> Iterator[None]:
    """A context in which each module's input h is replaced by `change(sites[module], h)`.

    Args:
        sites: The modules, each with the layer that `change` receives.
        change: A function from that layer and h to the new input.
    """
    handles = [
        module.register_forward_pre_hook(lambda _, args, layer=layer: (change(layer, args[0]), *args[1:]))
        for module, layer in sites.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def called_layers(network: Network, x: Tensor) -> list[nn.Module]:
    """The dense layers and convolutions of the network, in the order in which it calls them.

    Args:
        network: The network.
        x: Example inputs.
    """
    layers: dict[nn.Module, nn.Module] = {m: m for m in network.module.modules() if isinstance(m, _WEIGHT_LAYERS)}
    calls: list[nn.Module] = []

    def record(layer: nn.Module, h: Tensor) -> Tensor:
        calls.append(layer)
        return h

    with torch.no_grad(), evaluating(network.module), changing_inputs(layers, record):
        network(x)
    return list(dict.fromkeys(calls))


def _affine(layer: nn.Module, h: Tensor) -> tuple[Tensor, Tensor]:
    """a and b of a mask for one input, drawn from torch's global generator."""
    zeros = torch.zeros(1, *h.shape[1:], dtype=h.dtype, device=h.device)
    with forked_random(h.device):
        shift = layer(zeros)
    return layer(zeros + 1) - shift, shift
