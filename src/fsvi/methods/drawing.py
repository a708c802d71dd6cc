"""The outputs of a network under several draws, where all passes over the same inputs share what they can."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

from fsvi.networks.network import Network
from fsvi.networks.parameters import is_dense
from fsvi.networks.shared_start import SharedStart

_NUMBERS_AT_ONCE = 2**25
"""The random numbers that draws may hold together; with more, draws are evaluated in groups."""
_DRAWS_AT_ONCE = 64
"""The draws of a small network that are computed together."""
_MOST_PARAMETERS = 2**17
"""The parameters of the largest network that counts as small: with more, copying draws costs more than it saves."""


@dataclass(frozen=True)
class Draw:
    """A random function of inputs.

    Attributes:
        function: The outputs at inputs. It tells the `SharedStart` where randomness begins.
        size: How many random numbers the draw holds, once it was evaluated.
    """

    function: Callable[[Any, SharedStart], Tensor]
    size: Callable[[], int]


def evaluate(network: Network, draws: Iterable[Draw], batches: Sequence[Any]) -> Tensor:
    """The outputs of all draws at all inputs, (draws, n, ...).

    A batch goes through everything before the first random layer once, and through the rest once per draw.

    Args:
        network: The network that the draws call.
        draws: The draws, made when they are needed.
        batches: The inputs, in the network's memory layout.
    """
    waiting = iter(draws)
    groups: list[Tensor] = []
    while True:
        group: list[Draw] = []
        outputs = [_outputs(network, _taken(waiting, group), batches[0])]
        if not group:
            return torch.cat(groups)
        outputs += [_outputs(network, group, x) for x in batches[1:]]
        groups.append(torch.cat([torch.stack(each) for each in outputs], dim=1))


def parameter_draws(network: Network, draws: Iterable[Mapping[str, Tensor]]) -> Iterator[Draw]:
    """The network under draws of its parameters.

    Args:
        network: The network.
        draws: Parameters and buffers by name, one mapping per draw. Tensors that all draws share are not random.
    """
    waiting = iter(draws)
    pair = list(islice(waiting, 2))
    random = _random_names(pair)
    for params in chain(pair, waiting):
        yield _parameter_draw(network, params, [params[name] for name in random])


def evaluate_stacked(network: Network, draws: Iterable[Mapping[str, Tensor]], batches: Sequence[Any]) -> Tensor:
    """The outputs of the network under draws of its parameters, (draws, n, ...), many draws at once by `vmap`.

    Only layers that depend on something random are computed more than once here, too.

    Args:
        network: The network.
        draws: As in `parameter_draws`.
        batches: The inputs, in the network's memory layout.
    """
    waiting = iter(draws)
    drawn = list(islice(waiting, _DRAWS_AT_ONCE))
    random = _random_names(drawn[:2])
    fixed = {name: value for name, value in drawn[0].items() if name not in random}
    outputs = torch.vmap(lambda params, x: network(x, {**fixed, **params}), (0, None))
    groups = []
    while drawn:
        stacked = {name: torch.stack([params[name] for params in drawn]) for name in random}
        groups.append(torch.cat([outputs(stacked, x) for x in batches], dim=1))
        drawn = list(islice(waiting, _DRAWS_AT_ONCE))
    return torch.cat(groups)


def is_small(network: Network) -> bool:
    """Whether stacked draws are faster than one after the other: a dense network whose passes are mostly overhead."""
    return is_dense(network.module) and sum(p.numel() for p in network.module.parameters()) <= _MOST_PARAMETERS


def _random_names(draws: Sequence[Mapping[str, Tensor]]) -> list[str]:
    """The tensors that draws do not share, or whose memory is not known, as for some kinds of tensors."""

    def is_shared(places: set[int]) -> bool:
        return len(draws) > 1 and len(places) == 1 and 0 not in places

    return [name for name in draws[0] if not is_shared({params[name].data_ptr() for params in draws})]


def _parameter_draw(network: Network, params: Mapping[str, Tensor], random: Sequence[Tensor]) -> Draw:
    def function(x: Any, start: SharedStart) -> Tensor:
        start.watch(random)
        return network(x, params)

    return Draw(function, lambda: sum(tensor.numel() for tensor in random))


def _taken(waiting: Iterator[Draw], group: list[Draw]) -> Iterator[Draw]:
    """The next draws, as many as may be held at once; each is added to `group`."""
    numbers = 0
    while numbers < _NUMBERS_AT_ONCE and (draw := next(waiting, None)) is not None:
        group.append(draw)
        yield draw
        numbers += draw.size()


def _outputs(network: Network, draws: Iterable[Draw], x: Any) -> list[Tensor]:
    start = SharedStart(network.module)
    return [start.run(partial(draw.function, x, start)) for draw in draws]
