"""Any network as features followed by a last linear layer: f(x) = Φ(x) Wᵀ + b."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fsvi.errors import HeadError, InvalidInputError
from fsvi.networks.functional import functional_call
from fsvi.validation import first_line

_NORMALISATIONS = (
    nn.modules.batchnorm._BatchNorm,
    nn.modules.instancenorm._InstanceNorm,
)


@dataclass(frozen=True)
class Split:
    """A network and the name of its last linear layer, the head; everything before it computes the features Φ(x)."""

    net: nn.Module
    head: str
    is_reused: bool = False
    """whether the network also calls the head before the end, as far as was seen"""

    @property
    def linear(self) -> nn.Linear:
        """The last linear layer."""
        module = self.net.get_submodule(self.head)
        assert isinstance(module, nn.Linear)
        return module

    @property
    def num_outputs(self) -> int:
        """How many outputs the network has."""
        return self.linear.out_features

    @property
    def head_names(self) -> list[str]:
        """The head's parameters, weight first, by their names in the network."""
        prefix = f"{self.head}." if self.head else ""
        return [prefix + name for name, _ in self.linear.named_parameters()]

    @property
    def is_tied(self) -> bool:
        """Whether the features use one of the head's parameters too."""
        names = dict(self.net.named_parameters(remove_duplicate=False))
        own = {id(names[name]) for name in self.head_names}
        return self.is_reused or any(id(p) in own and name not in self.head_names for name, p in names.items())

    def forward(self, tensors: Mapping[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        """Features and outputs of the network whose parameters and buffers are replaced by `tensors`."""
        with _recording(self.linear) as inputs:
            outputs = functional_call(self.net, dict(tensors), (x,))
        return inputs[-1], outputs


def split_head(net: nn.Module, x: Tensor | None = None, head: str | None = None) -> Split:
    """Split `net` into features and its last linear layer.

    With an example batch `x` the layer is the one whose output *is* the network's output, and head(features(x)) is
    checked to equal net(x). Without one it is the linear layer registered last, to be checked when data arrives.
    """
    linears = {name: module for name, module in net.named_modules() if isinstance(module, nn.Linear)}
    if head is not None and head not in linears:
        raise HeadError(f"head={head!r} is not a linear layer of the network; it has {_listed(linears)}.")
    if not linears:
        raise HeadError("the network has no nn.Linear layer: fsvi needs one that computes the outputs.")
    if x is None:
        return Split(net, head if head is not None else list(linears)[-1])
    found = _trace(net, linears, x)
    if head is not None and head != found.head:
        raise HeadError(f"head={head!r} does not compute the network's output; {found.head!r} does.")
    return found


def deterministic_names(net: nn.Module) -> set[str]:
    """Trainable parameters that stay points in every posterior: the scale and shift of BatchNorm and InstanceNorm."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in net.named_modules()
        if isinstance(module, _NORMALISATIONS)
        for name, _ in module.named_parameters(recurse=False)
    }


def batch_norms(net: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """The layers that keep running statistics of the batches they see."""
    return [module for module in net.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Put `net` into eval mode for a while: no dropout, frozen BatchNorm statistics; each layer's mode comes back."""
    training = [module for module in net.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def averaging_statistics(net: nn.Module) -> Iterator[None]:
    """For a while, BatchNorm's statistics become the average over the batches that come; the rest is in eval mode."""
    layers = batch_norms(net)
    momenta = [layer.momentum for layer in layers]
    with evaluating(net):
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum, layer.training = None, True
        try:
            yield
        finally:
            for layer, momentum in zip(layers, momenta, strict=True):
                layer.momentum, layer.training = momentum, False


@contextmanager
def _dropping(net: nn.Module) -> Iterator[None]:
    """In a network in eval mode, switch dropout on for a while."""
    layers = [module for module in net.modules() if isinstance(module, nn.modules.dropout._DropoutNd)]
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False


@contextmanager
def _recording(module: nn.Module) -> Iterator[list[Tensor]]:
    inputs: list[Tensor] = []
    handle = module.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    try:
        yield inputs
    finally:
        handle.remove()


def _trace(net: nn.Module, linears: Mapping[str, nn.Linear], x: Tensor) -> Split:
    """The network split at the linear layer whose output is the network's."""
    calls: list[tuple[str, Tensor, Tensor]] = []
    handles = [
        module.register_forward_hook(lambda _, args, out, name=name: calls.append((name, args[0], out.clone())))
        for name, module in linears.items()
    ]
    try:
        with evaluating(net), torch.no_grad():
            output = net(x)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise InvalidInputError(
            f"the network does not accept inputs of shape {tuple(x.shape[1:])} and type {x.dtype}: {first_line(error)}."
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    _check_output(output, len(x))
    if not bool(output.isfinite().all()):
        raise InvalidInputError("the network's output is NaN or infinite for the first inputs: check its parameters.")
    for name, features, value in reversed(calls):
        if value.shape == output.shape and torch.equal(value, output):
            _check_features(name, features, len(x))
            _check_untouched(net, name, output, x)
            return Split(net, name, is_reused=sum(called == name for called, *_ in calls) > 1)
    raise HeadError(_explain(output, calls[-1][0] if calls else None))


def _check_untouched(net: nn.Module, head: str, output: Tensor, x: Tensor) -> None:
    """Put large numbers in the place of the head's output: what bounds or drops them would pass for nothing else."""
    probe = 1e3 * torch.randn(output.shape, generator=torch.Generator().manual_seed(0)).to(output)
    handle = net.get_submodule(head).register_forward_hook(lambda *_: probe.clone())
    try:
        with evaluating(net), _dropping(net), torch.no_grad(), torch.random.fork_rng(devices=[]):
            untouched = torch.equal(net(x), probe)
    finally:
        handle.remove()
    if not untouched:
        raise HeadError(_explain(output, head))


def _check_output(output: object, num: int) -> None:
    if not isinstance(output, Tensor):
        raise HeadError(f"the network returns a {type(output).__name__}; fsvi needs one tensor (inputs, outputs).")
    if output.dim() != 2 or len(output) != num:
        raise HeadError(
            f"the network returns shape {tuple(output.shape)} for {num} inputs; fsvi needs ({num}, outputs)."
        )


def _check_features(name: str, features: Tensor, num: int) -> None:
    if features.dim() != 2 or len(features) != num:
        raise HeadError(
            f"the input of the last layer {name!r} has shape {tuple(features.shape)}, not ({num}, features)."
        )


def _explain(output: Tensor, last: str | None) -> str:
    if last is None:
        return "the network calls none of its linear layers: fsvi needs one that computes the outputs."
    sums = output.double().sum(-1)
    one = torch.ones_like(sums)
    if bool((output >= 0).all()) and torch.allclose(sums, one, atol=1e-4):
        return f"the network ends in a softmax after {last!r}: return the linear layer's output, the logits, instead."
    if torch.allclose(output.double().exp().sum(-1), one, atol=1e-4):
        return (
            f"the network ends in a log-softmax after {last!r}: return the linear layer's output, the logits, instead."
        )
    return f"the network's output is not the output of a linear layer: something changes it after {last!r}."


def _listed(names: Mapping[str, nn.Linear]) -> str:
    return ", ".join(repr(name) for name in names) if names else "none"
