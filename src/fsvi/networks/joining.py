"""Whether two batches may go through a network as one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fsvi.networks.functional import functional_call
from fsvi.networks.split import batch_norms, evaluating

_TOLERANCE = 1e-4
"""what rounding may make of one example in batches of two sizes, relative to the largest output"""


@torch.no_grad()
def is_joinable(net: nn.Module, x: Tensor) -> bool:
    """Whether `net`, tried on a few examples, treats each of them alone, and in training as in evaluation.

    BatchNorm does neither; dropout, in whatever way it is written, is found by the random numbers that it draws.
    """
    if batch_norms(net):
        return False
    modes = [(module, module.training) for module in net.modules()]
    buffers = {name: buffer.clone() for name, buffer in net.named_buffers()}
    with torch.random.fork_rng(devices=[]):
        with evaluating(net):
            alone = net(x)
        before = torch.get_rng_state()
        try:
            net.train()
            joined = functional_call(net, buffers, (torch.cat([x, x[:1]]),))
        finally:
            for module, mode in modes:
                module.training = mode
        drawn = not torch.equal(torch.get_rng_state(), before)
    return not drawn and bool((joined[: len(x)] - alone).abs().max() <= _TOLERANCE * alone.abs().max())
