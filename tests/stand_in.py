"""A stand-in for an accelerator, so that device handling can be tested on a machine without one.

The device "stand_in" computes on the CPU, but its tensors are not CPU tensors: an operation that mixes the two is an
error, as on a GPU, and copies between the two are visible. It has its own random generator. Every operation for which a
GPU would make the program wait is counted.
"""

from __future__ import annotations

from collections import Counter
from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

NAME = "stand_in"
_WAITING = {
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "equal",
    "is_nonzero",
    "unique_dim",
    "_unique2",
    "_linalg_check_errors",
    "repeat_interleave",  # unless it is told the size of its output
    "_linalg_eigh",
    "linalg_eigh",
}
"""Operations whose result the program needs on the host; eigh checks its own success."""
_DEVICE: list[torch.device] = []


class DeviceMixError(AssertionError):
    """An operation has tensors of both devices."""


class _Module(ModuleType):
    """What torch asks of a device's module; the generator's state is a CPU tensor, as on a GPU."""

    state: Tensor

    def is_available(self):
        return True

    def is_initialized(self):
        return True

    def _is_in_bad_fork(self):
        return False

    def device_count(self):
        return 1

    def current_device(self):
        return 0

    def manual_seed(self, seed):
        self.state = torch.Generator().manual_seed(seed).get_state()

    def manual_seed_all(self, seed):
        self.manual_seed(seed)

    def get_rng_state(self, device=None):
        return self.state.clone()

    def set_rng_state(self, state, device=None):
        self.state = state.clone()

    def get_amp_supported_dtype(self):
        return [torch.bfloat16, torch.float16]


def register() -> None:
    """Make the device known to torch, if this version of it can: before the first backward pass of the process."""
    setup = getattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend", None)
    if setup is not None and not _DEVICE:
        module = _Module(NAME)
        module.manual_seed(0)
        setup(rename=NAME, backend_module=module)
        _DEVICE.append(torch.device(NAME, 0))


def device() -> torch.device:
    """The device; the calling test is skipped if there is none."""
    if not _DEVICE:
        pytest.skip("this version of torch cannot register a device from Python")
    return _DEVICE[0]


def put(module):
    """The module with all its tensors on the device, as new parameters."""
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        return module.to(device())
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(before)


class DeviceTensor(Tensor):
    """A tensor on the stand-in device; `raw` has its values."""

    raw: Tensor

    @staticmethod
    def __new__(cls, raw, requires_grad=False):
        if raw.dtype == torch.float64 and not StandIn.has_float64:
            raise TypeError("the device has no float64")
        if raw._is_zerotensor():  # zeros without memory, in forward mode
            raw = torch.zeros(raw.shape, dtype=raw.dtype)
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.shape,
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=device(),
            requires_grad=requires_grad,
        )
        made.raw = raw
        return made

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            copied = DeviceTensor(self.raw.detach().clone(), self.requires_grad)
            if getattr(self, "_is_param", False):
                copied._is_param = True
            memo[id(self)] = copied
        return memo[id(self)]

    @property
    def data(self):
        return self.detach()

    @data.setter
    def data(self, value):
        torch.Tensor.data.__set__(self, value)
        self.raw = value.raw

    def tolist(self):
        return self.cpu().tolist()

    def __repr__(self, **_):
        return f"DeviceTensor({self.raw!r})"

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} runs outside of the stand-in's mode")


class StandIn(TorchDispatchMode):
    """Runs everything on the stand-in device that belongs there.

    Attributes:
        waits: How many times the program would wait for the device, by operation.
        crossings: How many tensors crossed to the device or back without such a wait.
    """

    has_float64 = True
    """Whether the device has float64, which MPS does not"""

    def __init__(self):
        super().__init__()
        self.waits: Counter[str] = Counter()
        self.crossings = 0
        self._module = torch.get_device_module(device())

    def restart(self):
        self.waits.clear()
        self.crossings = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        leaves = pytree.tree_leaves((args, kwargs))
        there = [leaf for leaf in leaves if isinstance(leaf, DeviceTensor)]
        here = [leaf for leaf in leaves if isinstance(leaf, Tensor) and not isinstance(leaf, DeviceTensor)]
        name = func._schema.name.removeprefix("aten::").rstrip("_")
        target = kwargs.get("device")
        target = None if target is None else torch.device(target)
        if not there and (target is None or target.type != NAME):
            return func(*args, **kwargs)
        if any(leaf.device.type == "meta" for leaf in here):  # torch asks for the shape of a result
            args, kwargs = pytree.tree_map_only(DeviceTensor, lambda t: t.raw.to("meta"), (args, kwargs))
            return func(*args, **kwargs)
        if name in ("_to_copy", "copy"):
            self._count_copy(func, args, kwargs, target, there, here)
        elif any(leaf.dim() > 0 for leaf in here) and there:
            shapes = [tuple(leaf.shape) for leaf in here]
            raise DeviceMixError(f"{func} mixes tensors of both devices: CPU tensors of shapes {shapes}")
        elif _needs_result(name, kwargs) or (name == "index" and any(map(_is_mask, there[1:]))):
            self.waits[name] += 1
        on_cpu = target is not None and target.type == "cpu"
        if target is not None:
            kwargs["device"] = torch.device("cpu")
        return self._run(func, args, kwargs, wraps=not on_cpu and not (name == "copy" and not _is_there(args[0])))

    def _count_copy(self, func, args, kwargs, target, there, here):
        crosses = (bool(there) and bool(here)) or (
            target is not None and (target.type == NAME) != isinstance(args[0], DeviceTensor)
        )
        if not crosses:
            return
        non_blocking = kwargs.get("non_blocking", False) or (len(args) > 2 and bool(args[2]))
        to_device = bool(here)
        if non_blocking and to_device:
            self.crossings += 1
        else:
            self.waits["copy to the device" if to_device else "copy to the host"] += 1

    def _run(self, func, args, kwargs, wraps):
        raw_args, raw_kwargs = pytree.tree_map(_unwrapped, (args, kwargs))
        if torch.Tag.nondeterministic_seeded in func.tags and wraps:
            result = self._drawn(func, raw_args, raw_kwargs)
        else:
            result = func(*raw_args, **raw_kwargs)
        if not wraps:
            return pytree.tree_map_only(Tensor, lambda t: _given(t, args) if _given(t, args) is not None else t, result)
        return pytree.tree_map_only(Tensor, lambda t: _wrapped(t, (args, kwargs)), result)

    def _drawn(self, func, args, kwargs):
        """Draw from the device's own generator."""
        if kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        state = torch.get_rng_state()
        torch.set_rng_state(self._module.state)
        try:
            return func(*args, **kwargs)
        finally:
            self._module.state = torch.get_rng_state()
            torch.set_rng_state(state)


def _needs_result(name, kwargs):
    return name in _WAITING and "output_size" not in kwargs


def _is_there(value):
    return isinstance(value, DeviceTensor)


def _is_mask(value):
    return isinstance(value, Tensor) and value.dtype in (torch.bool, torch.uint8)


def _unwrapped(value):
    return value.raw if isinstance(value, DeviceTensor) else value


def _given(raw, given):
    """The argument whose values an in-place operation returned."""
    return next((leaf for leaf in pytree.tree_leaves(given) if leaf is raw), None)


def _wrapped(raw, given):
    """A result as a tensor of the device: the argument itself after an in-place operation, or a new one."""
    for leaf in pytree.tree_leaves(given):
        if isinstance(leaf, DeviceTensor) and leaf.raw is raw:
            return leaf
    return DeviceTensor(raw)
