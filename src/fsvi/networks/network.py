"""The user's model, and everything that fsvi has to know about it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fsvi.errors import FileFormatError, HeadError, InvalidInputError
from fsvi.networks.description import describe
from fsvi.networks.functional import functional_call
from fsvi.networks.modes import dropping, evaluating
from fsvi.networks.parameters import freeze_parameters, frozen_norms, hold_padding_rows, initialize
from fsvi.validation import check_type, first_line

Output = str | int | Callable[[Any], Tensor]
"""Where a model's outputs are in what it returns: a key, an attribute, an index, or a function."""

_TOLERANCE = 0.02
"""How far outputs may be from those of a plain linear layer, relative to the largest: rounding in half precision."""
_NOT_PLAIN = "the last layer {head!r} is not a plain linear layer, features @ weight.T + bias, because {reason}."
_FUNCTION = {"function": True}
"""Stands in a file for an `output` that is a function, which a file cannot hold."""


class Network:
    """A model, seen as features followed by a last linear layer: f(x) = Φ(x) Wᵀ + b.

    Methods wrap a plain `nn.Module` automatically. Wrap it yourself to state what cannot be detected:
    `fsvi.FSVI(fsvi.Network(net, head="fc"), ...)`. The last linear layer, the head, is found when the first inputs
    arrive: it is the layer whose output is the model's output.

    Args:
        module: The model. Methods copy it; it never changes. A compiled model is used without its compilation, because
            methods call it with drawn parameters.
        head: The name of the last linear layer; None detects it.
        output: Where the outputs are in what the model returns, if that is not a tensor: a key of a dictionary, an
            attribute, an index of a tuple, or a function. Files record keys, attributes and indices. For a function,
            pass the wrapped model to `fsvi.load` again.
        channels_last: Keep images and convolution weights in the memory layout in which convolutions are fastest.
    """

    def __init__(
        self,
        module: nn.Module,
        head: str | None = None,
        output: Output | None = None,
        channels_last: bool = True,
    ) -> None:
        check_type("net", module, nn.Module, "a torch.nn.Module")
        module = _uncompiled(module)
        check_supported(module)
        linears = _linears(module)
        if head is not None and head not in linears:
            raise HeadError(f"head={head!r} is not a linear layer of the network; it has {_listed(linears)}.")
        if not linears:
            raise HeadError("the network has no nn.Linear layer: fsvi needs one that computes the outputs.")
        self.module = module
        self.output = _check_output_setting(output)
        self.channels_last = _check_flag("channels_last", channels_last)
        self.head = head if head is not None else list(linears)[-1]
        """The last linear layer: given, found, or for now the one registered last."""
        self.is_reused = False
        """Whether the model also calls the head before the end, as far as was seen."""
        self._is_head_given = head is not None

    @classmethod
    def wrap(cls, net: nn.Module | Network) -> Network:
        """The network itself, or a module with nothing stated about it."""
        return net if isinstance(net, cls) else cls(net)  # type: ignore[arg-type]

    def copied(self) -> Network:
        """A network with a copy of the module, in the memory layout that was asked for, ready to be trained."""
        module = copy.deepcopy(self.module)
        if self.channels_last:
            for tensor in (*module.parameters(), *module.buffers()):
                if tensor.dim() == 4:  # the layout is of images; other tensors have none
                    tensor.data = tensor.data.to(memory_format=torch.channels_last)
        hold_padding_rows(module)
        return self.replaced(module)

    def replaced(self, module: nn.Module) -> Network:
        """The same statements about another module of the same architecture."""
        other = copy.copy(self)
        other.module = module
        return other

    def frozen(self, freeze: bool | Sequence[str]) -> Network:
        """A copy with parameters frozen: those of the layers that `freeze` names, or with True all but the head's."""
        other = self.copied()
        freeze_parameters(other.module, freeze, self.head_names)
        return other

    def redrawn(self) -> Network:
        """A copy whose trainable layers have new random parameters, drawn the way PyTorch does."""
        other = self.copied()
        initialize(other.module)
        return other

    def train(self) -> None:
        """Training mode, except that normalization layers whose parameters are all frozen stay in eval mode."""
        self.module.train()
        self.hold_frozen()

    def hold_frozen(self) -> None:
        """Keep frozen normalization layers in eval mode: their running statistics are used and do not move."""
        for layer in self.frozen_norms():
            layer.eval()

    def frozen_norms(self) -> list[nn.Module]:
        """The normalization layers whose parameters are all frozen."""
        return frozen_norms(self.module, self.head_names)

    # Calls ----------------------------------------------------------------------------------------------------------

    def __call__(self, x: Tensor, tensors: Mapping[str, Tensor] | None = None) -> Tensor:
        """The outputs at `x`, (inputs, outputs), with `tensors` in place of parameters and buffers of those names."""
        returned = self.module(x) if tensors is None else functional_call(self.module, tensors, (x,))
        return returned if self.output is None else self._unwrap(returned)

    def with_features(self, x: Tensor, tensors: Mapping[str, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """The features Φ(x), (inputs, features), and the outputs, with `tensors` in place of the network's own."""
        with _recording(self.linear) as inputs:
            outputs = self(x, tensors)
        return inputs[-1], outputs

    def arranged(self, x: Tensor) -> Tensor:
        """`x` on the network's device, and images in its memory layout."""
        layout = torch.channels_last if self.channels_last and x.dim() == 4 else torch.contiguous_format
        return x.to(self.device).contiguous(memory_format=layout)

    def _unwrap(self, returned: Any) -> Tensor:
        output = self.output
        if callable(output):
            return output(returned)
        try:
            is_attribute = isinstance(output, str) and not isinstance(returned, Mapping)
            value: Tensor = getattr(returned, str(output)) if is_attribute else returned[output]
        except (AttributeError, KeyError, IndexError, TypeError) as error:
            raise HeadError(
                f"output={output!r} is not part of the {type(returned).__name__} that the network returns."
            ) from error
        return value

    # The last layer -------------------------------------------------------------------------------------------------

    @property
    def linear(self) -> nn.Linear:
        """The last linear layer."""
        module = self.module.get_submodule(self.head)
        assert isinstance(module, nn.Linear)
        return module

    @property
    def num_outputs(self) -> int:
        """The number of outputs."""
        return self.linear.out_features

    @property
    def head_names(self) -> list[str]:
        """The names of the head's parameters in the network, weight first."""
        prefix = f"{self.head}." if self.head else ""
        return [prefix + name for name, _ in self.linear.named_parameters()]

    @property
    def is_tied(self) -> bool:
        """Whether the features use one of the head's parameters too."""
        names = dict(self.module.named_parameters(remove_duplicate=False))
        own = {id(names[name]) for name in self.head_names}
        return self.is_reused or any(id(p) in own and name not in self.head_names for name, p in names.items())

    def examined(self, x: Tensor) -> Network:
        """The network with its head found by a pass over example inputs `x`, and checked: head(features(x)) = f(x)."""
        x = self.arranged(x)
        calls, outputs = self._trace(x)
        found = [call for call in calls if call[2].shape == outputs.shape and torch.equal(call[2], outputs)]
        if not found:
            raise HeadError(_explain(outputs, calls[-1][0] if calls else None))
        name, features, _ = found[-1]
        _check_features(name, features, len(x))
        if self._is_head_given and name != self.head:
            raise HeadError(f"head={self.head!r} does not compute the network's output; {name!r} does.")
        self._check_untouched(name, outputs, x)
        other = copy.copy(self)
        other.head = name
        other.is_reused = sum(called == name for called, *_ in calls) > 1
        other._check_plain(x)
        return other

    def _trace(self, x: Tensor) -> tuple[list[tuple[str, Tensor, Tensor]], Tensor]:
        """Name, input and output of every call of a linear layer, and the network's outputs."""
        calls: list[tuple[str, Tensor, Tensor]] = []
        handles = [
            module.register_forward_hook(lambda _, args, out, name=name: calls.append((name, args[0], out.clone())))
            for name, module in _linears(self.module).items()
        ]
        try:
            with evaluating(self.module), torch.no_grad():
                outputs = self(x)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            if isinstance(error, HeadError):
                raise
            shape = tuple(x.shape[1:])
            raise InvalidInputError(
                f"the network does not accept inputs of shape {shape} and type {x.dtype}: {first_line(error)}."
            ) from error
        finally:
            for handle in handles:
                handle.remove()
        _check_outputs(outputs, len(x))
        return calls, outputs

    def _check_untouched(self, head: str, outputs: Tensor, x: Tensor) -> None:
        """Replace the head's output by large numbers, which detects a softmax, clamp or dropout after the head."""
        probe = 1e3 * torch.randn(outputs.shape, generator=torch.Generator().manual_seed(0)).to(outputs)
        handle = self.module.get_submodule(head).register_forward_hook(lambda *_: probe.clone())
        try:
            with evaluating(self.module), dropping(self.module), torch.no_grad(), torch.random.fork_rng(devices=[]):
                untouched = torch.equal(self(x), probe)
        finally:
            handle.remove()
        if not untouched:
            raise HeadError(_explain(outputs, head))

    def _check_plain(self, x: Tensor) -> None:
        """Refuse a head that is not F.linear(features, weight, bias) for any weight, in eval or training mode."""
        linear = self.linear
        odd = {name for name, _ in linear.named_parameters()} - {"weight", "bias"}
        if odd or "weight" not in linear._parameters:
            raise HeadError(_NOT_PLAIN.format(head=self.head, reason="its weight is computed from other parameters"))
        for training in (False, True):
            drawn = self._drawn_head()
            with evaluating(self.module), torch.no_grad(), torch.random.fork_rng(devices=[]):
                linear.train(training)
                features, outputs = self.with_features(x, drawn)
                linear.eval()
            expected = nn.functional.linear(features, *(drawn[name] for name in self.head_names))
            tolerance = _TOLERANCE * float(expected.abs().max())
            if not torch.allclose(outputs, expected, rtol=0, atol=tolerance):
                kind = type(linear).__name__
                raise HeadError(_NOT_PLAIN.format(head=self.head, reason=f"{kind} computes something else"))

    def _drawn_head(self) -> dict[str, Tensor]:
        """Random parameters of the head, the same in every call; zeros would hide what the layer computes."""
        generator = torch.Generator().manual_seed(0)
        own = zip(self.head_names, self.linear.parameters(), strict=True)
        return {name: torch.randn(p.shape, generator=generator).to(p) / p.shape[-1] ** 0.5 for name, p in own}

    # Parameters and files -------------------------------------------------------------------------------------------

    @property
    def dtype(self) -> torch.dtype:
        """The floating type of the parameters."""
        return next((p.dtype for p in self.module.parameters() if p.is_floating_point()), torch.float32)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.module.parameters()).device

    def architecture(self) -> list[str]:
        """The names and shapes of the parameters, in order: what a file must agree with."""
        return [f"{name} {tuple(p.shape)}" for name, p in self.module.named_parameters()]

    def description(self) -> dict[str, Any] | None:
        """The module as plain values, from which a file can rebuild it; None unless it is made of standard layers."""
        return describe(self.module) if self.output is None else None

    def settings(self) -> dict[str, Any]:
        """What a file records besides the module: the head's name as it was found, the output and the layout."""
        output = _FUNCTION if callable(self.output) else self.output
        return {"head": self.head, "output": output, "channels_last": self.channels_last}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], net: nn.Module | Network) -> Network:
        """The network that was saved with these `settings`; a wrapped `net` supplies an `output` that is a function."""
        module, own = (net.module, net.output) if isinstance(net, Network) else (net, None)
        saved = settings.get("output")
        if saved == _FUNCTION and own is None:
            raise FileFormatError(
                "the network's output was taken by a function, which a file cannot hold: "
                "pass fsvi.Network(net, output=function) to fsvi.load."
            )
        output = saved if own is None else own
        return cls(module, settings.get("head"), output, settings.get("channels_last", True))


def check_supported(module: nn.Module) -> None:
    """Refuse modules that fsvi cannot copy, or cannot call with other parameters."""
    for part in module.modules():
        kind, origin = type(part).__name__, type(part).__module__
        if isinstance(part, (nn.parallel.DistributedDataParallel, nn.DataParallel)) or ".fsdp" in origin:
            raise InvalidInputError(f"the network is wrapped in {kind}: pass the module inside, net.module, instead.")
        if isinstance(part, torch.jit.ScriptModule):
            raise InvalidInputError("the network is scripted or traced: pass the nn.Module that it was made from.")
        if ".quantized" in origin:
            raise InvalidInputError(f"the network has a quantized layer, {kind}: pass the network in floating point.")
        if any(nn.parameter.is_lazy(p) for p in part.parameters(recurse=False)):
            raise InvalidInputError(f"the network has a lazy layer, {kind}: call it once on an example input first.")


def _uncompiled(module: nn.Module) -> nn.Module:
    """The module inside `torch.compile`, whose names would otherwise all start with `_orig_mod`."""
    return getattr(module, "_orig_mod", module)


def _linears(module: nn.Module) -> dict[str, nn.Linear]:
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, nn.Linear)}


@contextmanager
def _recording(module: nn.Module) -> Iterator[list[Tensor]]:
    inputs: list[Tensor] = []
    handle = module.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    try:
        yield inputs
    finally:
        handle.remove()


def _check_flag(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise InvalidInputError(f"{name}={value!r} must be True or False.")


def _check_output_setting(output: Any) -> Output | None:
    if output is None or callable(output) or (isinstance(output, (str, int)) and not isinstance(output, bool)):
        return output
    raise InvalidInputError(
        f"output={output!r} must say where the outputs are in what the network returns: "
        "a key, an attribute, an index or a function."
    )


def _check_outputs(outputs: object, num: int) -> None:
    if not isinstance(outputs, Tensor):
        raise HeadError(
            f"the network returns a {type(outputs).__name__}; fsvi needs one tensor (inputs, outputs): "
            "say where it is with fsvi.Network(net, output=...)."
        )
    if outputs.dim() != 2 or len(outputs) != num:
        raise HeadError(
            f"the network returns shape {tuple(outputs.shape)} for {num} inputs; fsvi needs ({num}, outputs)."
        )
    if not bool(outputs.isfinite().all()):
        raise InvalidInputError("the network's output is NaN or infinite for the first inputs: check its parameters.")


def _check_features(name: str, features: Tensor, num: int) -> None:
    if features.dim() != 2 or len(features) != num:
        raise HeadError(
            f"the input of the last layer {name!r} has shape {tuple(features.shape)}, not ({num}, features)."
        )


def _explain(outputs: Tensor, last: str | None) -> str:
    if last is None:
        return "the network calls none of its linear layers: fsvi needs one that computes the outputs."
    sums = outputs.double().sum(-1)
    one = torch.ones_like(sums)
    if bool((outputs >= 0).all()) and torch.allclose(sums, one, atol=1e-4):
        return f"the network ends in a softmax after {last!r}: return the linear layer's output, the logits, instead."
    if torch.allclose(outputs.double().exp().sum(-1), one, atol=1e-4):
        return (
            f"the network ends in a log-softmax after {last!r}: return the linear layer's output, the logits, instead."
        )
    return f"the network's output is not the output of a linear layer: something changes it after {last!r}."


def _listed(names: Mapping[str, nn.Linear]) -> str:
    return ", ".join(repr(name) for name in names) if names else "none"
