"""The user's model, and everything that fsvi has to know about it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from fsvi.errors import FileFormatError, HeadError, InvalidInputError
from fsvi.inputs import Bundle, Inputs, describe_inputs
from fsvi.networks.calls import Output, call, dropping, evaluating, repeatable, unwrap
from fsvi.networks.copies import deep_copy
from fsvi.networks.description import describe
from fsvi.networks.devices import forked_random, moved
from fsvi.networks.heads import (
    Head,
    OutputLayout,
    Positions,
    apply_head,
    channels_last,
    guess_head,
    head_axis,
    head_layers,
    recording,
    replacing_output,
)
from fsvi.networks.parameters import Norm, freeze_parameters, hold_padding_rows, initialize, is_dense_stack
from fsvi.validation import check_type, first_line

_TOLERANCE = 0.02
"""How far outputs may be from those of a plain linear layer, relative to the largest: rounding in half precision."""
_NOT_PLAIN = "the last layer {head!r} is not a plain linear layer, features @ weight.T + bias, because {reason}."
_FUNCTION = {"function": True}
"""Stands in a file for an `output` that is a function, which a file cannot hold."""
_ROWS = 256
"""How many inputs' features are computed at once."""
_MOST_PARAMETERS = 2**17
"""The parameters of the largest network that counts as small: with more, copying draws costs more than it saves."""


class Network:
    """A model, seen as features followed by a last linear layer: f(x) = Φ(x) Wᵀ + b.

    Methods wrap a plain `nn.Module` automatically. Wrap it yourself to state what cannot be detected:
    `fsvi.FSVI(fsvi.Network(net, head="fc"), ...)`. The last linear layer, the head, is found when the first inputs
    arrive: it is the layer whose output is the model's output.

    Inputs are a tensor, or a dictionary or tuple of tensors, which become the arguments of the model's `forward`. A
    head can also act at every position of a text or an image: a linear layer over tokens, or a 1×1 convolution. Then
    the outputs have dimensions (examples, positions..., channels), whatever order the model returns.

    Args:
        module: The model. Methods copy it; it never changes. A compiled model is used without its compilation, because
            methods call it with drawn parameters.
        head: The name of the last linear layer; None detects it.
        output: Where the outputs are in what the model returns, if that is not a tensor: a key of a dictionary, an
            attribute, an index of a tuple, or a function. None takes `logits` where there are any, the only entry of a
            dictionary, or the first of a tuple. Files record keys, attributes and indices. For a function, pass the
            wrapped model to `fsvi.load` again.

    Examples:
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 20), torch.nn.ReLU(), torch.nn.Linear(20, 3))
        >>> method = fsvi.MAP(fsvi.Network(net, head="2"), fsvi.Categorical())
    """

    def __init__(self, module: nn.Module, head: str | None = None, output: Output | None = None) -> None:
        check_type("net", module, nn.Module, "a torch.nn.Module")
        module = getattr(module, "_orig_mod", module)  # inside `torch.compile`, whose names all start with this one
        check_supported(module)
        layers = head_layers(module)
        if head is not None and head not in layers:
            raise HeadError(
                f"head={head!r} is not a linear layer of the network; it has {', '.join(map(repr, layers)) or 'none'}."
            )
        if not layers:
            raise HeadError("the network has no nn.Linear layer: fsvi needs one that computes the outputs.")
        self.module = module
        self.output = _check_output_setting(output)
        self.head = head if head is not None else guess_head(layers)
        """The last linear layer: given, found, or for now the one registered last."""
        self.head_names = self._names_of(self.head)
        """The names of the head's parameters in the network, weight first."""
        self.is_reused = False
        """Whether the model also calls the head before the end, as far as was seen."""
        self.is_small = is_dense_stack(module) and sum(p.numel() for p in module.parameters()) <= _MOST_PARAMETERS
        """Whether it is a stack of dense layers of which many draws are faster together than one after the other."""
        self.layout = OutputLayout()
        """How the model's outputs relate to the head's, as far as was seen."""
        self._is_head_given = head is not None

    @classmethod
    def wrap(cls, net: nn.Module | Network) -> Network:
        """The network itself, or a module with nothing stated about it."""
        return net if isinstance(net, cls) else cls(net)  # type: ignore[arg-type]

    def copied(self) -> Network:
        """A network with a copy of the module, in the memory layout in which convolutions are fastest."""
        module = deep_copy(self.module)
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.dim() == 4:  # the layout is of images; other tensors have none
                tensor.data = tensor.data.to(memory_format=torch.channels_last)
        hold_padding_rows(module)
        return self.replaced(module)

    def replaced(self, module: nn.Module) -> Network:
        """The same statements about another module of the same architecture."""
        other = copy.copy(self)
        other.module = module
        other.head_names = other._names_of(other.head)
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

    def frozen_norms(self) -> list[nn.Module]:
        """The normalization layers that must not learn: those whose parameters are all frozen.

        A layer without parameters counts as frozen if no parameter but the head's learns.
        """
        others = [p for name, p in self.module.named_parameters() if name not in self.head_names]
        norms = [(m, list(m.parameters()) or others) for m in self.module.modules() if isinstance(m, Norm)]
        return [norm for norm, around in norms if around and not any(p.requires_grad for p in around)]

    # Calls ----------------------------------------------------------------------------------------------------------

    def __call__(self, x: Inputs | Positions, tensors: Mapping[str, Tensor] | None = None) -> Tensor:
        """The outputs at `x`, (inputs, outputs), with `tensors` in place of parameters and buffers of those names.

        With outputs at every position they are (inputs, positions..., outputs); at chosen positions, (K, outputs).
        """
        if isinstance(x, Positions):
            return x.select(self(x.inputs, tensors))
        outputs = self._returned(x, tensors)
        return outputs if self.layout.axis == -1 else channels_last(outputs, self.layout.axis)

    def with_features(
        self, x: Inputs | Positions, tensors: Mapping[str, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """The features Φ(x), (inputs, features), and the outputs, with `tensors` in place of the network's own.

        As in a call, dimensions of positions come between the first and the last.
        """
        if isinstance(x, Positions):
            features, outputs = self.with_features(x.inputs, tensors)
            return x.select(features), x.select(outputs)
        axis = self.layout.axis
        if self.layout.is_moved:  # what selects or averages the head's outputs then does so with features
            with repeatable(lambda: replacing_output(self.linear)):
                features = channels_last(self._returned(x, tensors), axis)
            return features, apply_head(features, *((tensors or {}).get(n, p) for n, p in self._head_parameters()))
        with recording(self.linear) as inputs:
            outputs = self._returned(x, tensors)
        return channels_last(inputs[-1], axis), channels_last(outputs, axis)

    def features(self, x: Inputs | Positions, tensors: Mapping[str, Tensor] | None = None) -> Tensor:
        """The features Φ(x) alone: the pass ends where the head begins, if nothing else decides what they are."""
        if self.layout.is_moved or self.is_reused:
            return self.with_features(x, tensors)[0]
        if isinstance(x, Positions):
            return x.select(self.features(x.inputs, tensors))
        try:
            with self.linear.register_forward_pre_hook(_stop):
                self._returned(x, tensors)
        except _Reached as reached:
            return channels_last(reached.args[0], self.layout.axis)
        raise HeadError(f"the network did not call its last layer {self.head!r}.")

    @torch.no_grad()
    def features_of_all(self, x: Inputs) -> Tensor:
        """The features of many inputs in eval mode, a few at a time."""
        with evaluating(self.module):
            return torch.cat([self.features(self.arranged(chunk)) for chunk in x.split(_ROWS)])

    def arranged(self, x: Any) -> Any:
        """`x` on the network's device, and images in its memory layout."""
        if isinstance(x, Bundle):
            return x.map(self._arrange)
        return self._arrange(x)

    def _arrange(self, x: Tensor) -> Tensor:
        x = moved(x, self.device)
        if x.dim() != 4:
            return x.contiguous()
        if x.shape[1] == 1:  # both layouts are the same bytes; convolutions look at the strides
            return x.contiguous().squeeze(1).unsqueeze(-1).movedim(-1, 1)
        return x.contiguous(memory_format=torch.channels_last)

    def _returned(self, x: Inputs, tensors: Mapping[str, Tensor] | None = None) -> Any:
        """The outputs in the order of dimensions in which the model returns them."""
        return unwrap(call(self.module, x, tensors), self.output)

    # Positions ------------------------------------------------------------------------------------------------------

    def at_positions(self, x: Inputs, num: int) -> Any:
        """`x` itself, or `num` random positions of its outputs, all different if there are enough.

        Positions are spread evenly over examples; a network with one output vector per example has none.
        """
        return Positions(x, torch.rand(num, device=x.device)) if self.layout.positions else x

    # The last layer -------------------------------------------------------------------------------------------------

    @property
    def linear(self) -> Head:
        """The last layer: a dense layer, or a 1×1 convolution."""
        return self.module.get_submodule(self.head)  # type: ignore[return-value]

    @property
    def num_features(self) -> int:
        """The number of features that the head sees."""
        return self.linear.weight.shape[1]

    @property
    def num_outputs(self) -> int:
        """The number of outputs."""
        return self.linear.weight.shape[0]

    def _names_of(self, head: str) -> list[str]:
        """The names of the parameters of the layer `head`, as the network lists them: a tied one under its first."""
        names = {id(p): name for name, p in self.module.named_parameters()}
        return [names[id(p)] for p in self.module.get_submodule(head).parameters()]

    @property
    def is_tied(self) -> bool:
        """Whether the features use one of the head's parameters too."""
        own = [id(p) for p in self.linear.parameters()]
        places = [id(p) for _, p in self.module.named_parameters(remove_duplicate=False) if id(p) in own]
        return self.is_reused or len(places) > len(own)

    def examined(self, x: Inputs) -> Network:
        """The network with its head found by a pass over example inputs `x`, and checked: head(features(x)) = f(x)."""
        x = self.arranged(x)
        calls, outputs = self._trace(x)
        name, layout = self._find(x, calls, outputs)
        if self._is_head_given and name != self.head:
            raise HeadError(f"head={self.head!r} does not compute the network's output; {name!r} does.")
        other = copy.copy(self)
        other.head, other.head_names, other.layout = name, self._names_of(name), layout
        other._check_untouched(outputs, x)
        other.is_reused = sum(called == name for called, _ in calls) > 1
        other._check_plain(x)
        return other

    def _find(self, x: Inputs, calls: list[tuple[str, Tensor]], outputs: Tensor) -> tuple[str, OutputLayout]:
        """The head's name, and how the outputs relate to it."""
        found = [name for name, out in calls if out.shape == outputs.shape and torch.equal(out, outputs)][-1:]
        for name in found or dict.fromkeys(called for called, _ in reversed(calls)):
            is_dense = isinstance(self.module.get_submodule(name), nn.Linear)
            axis = self._moved_axis(x, name, outputs) if not found else -1 if is_dense else 1
            if axis is not None:
                axis = -1 if outputs.dim() == 2 else axis
                return name, OutputLayout(axis, not found, tuple(channels_last(outputs, axis).shape[1:-1]))
        if not calls:
            raise HeadError("the network calls none of its linear layers: fsvi needs one that computes the outputs.")
        raise HeadError(
            "the network's output is not the output of a linear layer: a softmax or something else changes it after "
            f"{calls[-1][0]!r}, so return that layer's output instead."
        )

    def _moved_axis(self, x: Inputs, name: str, outputs: Tensor) -> int | None:
        """Where the channels are if the model only moves or averages the outputs of the layer `name`, else None."""
        layer = self.module.get_submodule(name)
        try:
            with evaluating(self.module), torch.no_grad(), replacing_output(layer):
                features = self._returned(x)
        except Exception:  # the model may check what it gets in any way
            return None
        return head_axis(layer, outputs, features)  # type: ignore[arg-type]

    def _trace(self, x: Inputs) -> tuple[list[tuple[str, Tensor]], Tensor]:
        """Name and output of every call of a layer that can be the head, and the network's outputs."""
        calls: list[tuple[str, Tensor]] = []
        with ExitStack() as hooks:
            for name, layer in head_layers(self.module).items():
                note = lambda *given, name=name: calls.append((name, given[-1].clone()))  # noqa: E731
                hooks.enter_context(layer.register_forward_hook(note))
            outputs = self.outputs_at(x)
        _check_outputs(outputs, len(x))
        return calls, outputs

    def outputs_at(self, x: Inputs) -> Any:
        """What the network returns for `x` in eval mode, or an error that names the inputs."""
        try:
            with evaluating(self.module), torch.no_grad():
                return self._returned(self.arranged(x))
        except HeadError:
            raise
        except Exception as error:
            raise InvalidInputError(
                f"the network does not accept inputs of {describe_inputs(x)}: {first_line(error)}."
            ) from error

    def _check_untouched(self, outputs: Tensor, x: Inputs) -> None:
        """Replace the head's output by large numbers, which detects a softmax, clamp or dropout after the head."""
        generator = torch.Generator().manual_seed(0)
        with evaluating(self.module), dropping(self.module), torch.no_grad(), forked_random(self.device):
            if self.layout.is_moved:
                untouched = self._moves_all_alike(x, generator)
            else:
                probe = 1e3 * torch.randn(outputs.shape, generator=generator).to(outputs)
                with replacing_output(self.linear, probe):
                    untouched = torch.equal(self._returned(x), probe)
        if not untouched:
            raise HeadError(
                f"the network's output is not the output of a linear layer: something changes it after {self.head!r}, "
                "so return that layer's output instead."
            )

    def _moves_all_alike(self, x: Inputs, generator: torch.Generator) -> bool:
        """Whether what follows the head treats large features and outputs alike: move(head(Φ)) = head(move(Φ))."""
        with recording(self.linear) as inputs:
            self._returned(x)
        probe = 1e3 * torch.randn(inputs[-1].shape, generator=generator).to(inputs[-1])
        values = self.linear(probe)
        with replacing_output(self.linear, probe):
            features = channels_last(self._returned(x), self.layout.axis)
        with replacing_output(self.linear, values):
            outputs = channels_last(self._returned(x), self.layout.axis)
        expected = apply_head(features, *(p for _, p in self._head_parameters()))
        return torch.allclose(outputs, expected, rtol=0, atol=1e-3 * float(expected.abs().max()))

    def _check_plain(self, x: Inputs) -> None:
        """Refuse a head that is not F.linear(features, weight, bias) for any weight, in eval or training mode."""
        linear = self.linear
        odd = {name for name, _ in linear.named_parameters()} - {"weight", "bias"}
        if odd or "weight" not in linear._parameters:
            raise HeadError(_NOT_PLAIN.format(head=self.head, reason="its weight is computed from other parameters"))
        for training in (False, True):
            drawn = self._drawn_head()
            with evaluating(self.module), torch.no_grad(), forked_random(self.device):
                linear.train(training)
                features, outputs = self.with_features(x, drawn)
                outputs = self(x, drawn) if self.layout.is_moved else outputs
            expected = apply_head(features, *(drawn[name] for name in self.head_names))
            tolerance = _TOLERANCE * float(expected.abs().max())
            if not torch.allclose(outputs, expected, rtol=0, atol=tolerance):
                kind = type(linear).__name__
                raise HeadError(_NOT_PLAIN.format(head=self.head, reason=f"{kind} computes something else"))

    def _head_parameters(self) -> list[tuple[str, Tensor]]:
        return list(zip(self.head_names, self.linear.parameters(), strict=True))

    def _drawn_head(self) -> dict[str, Tensor]:
        """Random parameters of the head, the same in every call; zeros would hide what the layer computes."""
        generator = torch.Generator().manual_seed(0)
        own = self._head_parameters()
        return {name: torch.randn(p.shape, generator=generator).to(p) / p[0].numel() ** 0.5 for name, p in own}

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
        frozen = [name for name, p in self.module.named_parameters() if not p.requires_grad]
        return {"head": self.head, "output": output, "layout": list(self.layout), "frozen": frozen}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], net: nn.Module | Network) -> Network:
        """The network that was saved with these `settings`; a wrapped `net` supplies an `output` that is a function."""
        module, own = (net.module, net.output) if isinstance(net, Network) else (net, None)
        saved = settings["output"]
        if saved == _FUNCTION and own is None:
            raise FileFormatError(
                "the network's output was taken by a function, which a file cannot hold: "
                "pass fsvi.Network(net, output=function) to fsvi.load."
            )
        output = saved if own is None else own
        module = deep_copy(module)
        freeze_parameters(module, settings["frozen"], ())
        network = cls(module, settings["head"], output)
        axis, is_moved, positions = settings["layout"]
        network.layout = OutputLayout(int(axis), bool(is_moved), tuple(positions))
        return network


class _Reached(BaseException):
    """The head was called with this input; not an `Exception`, which a model might catch."""


def _stop(_: nn.Module, args: tuple[Any, ...]) -> None:
    raise _Reached(args[0])


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
    if outputs.dim() < 2 or len(outputs) != num:
        raise HeadError(
            f"the network returns shape {tuple(outputs.shape)} for {num} inputs; fsvi needs ({num}, outputs)."
        )
    if not bool(outputs.isfinite().all()):
        raise InvalidInputError("the network's output is NaN or infinite for the first inputs: check its parameters.")
