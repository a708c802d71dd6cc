"""Devices: which one to use, moving tensors there, and random numbers there."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fsvi.errors import InvalidInputError
from fsvi.validation import first_line

if TYPE_CHECKING:
    from typing_extensions import Self

_WITHOUT_FLOAT64 = ("mps",)


def find_device(device: str | torch.device) -> torch.device:
    """The device of this name, after a trial allocation; "auto" is an accelerator that works, or the CPU."""
    is_auto = isinstance(device, str) and device == "auto"
    try:
        found = torch.accelerator.current_accelerator() if is_auto and torch.accelerator.is_available() else device
        return torch.empty(0, device="cpu" if found == "auto" else found).device
    except (RuntimeError, AssertionError, TypeError) as error:
        if is_auto:
            return torch.device("cpu")
        raise InvalidInputError(
            f'device={device!r} cannot be used: {first_line(error)}; device="auto" finds one that works.'
        ) from error


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on `device`; the program does not wait for a copy to an accelerator."""
    return tensor.to(device, non_blocking=device.type != "cpu")


def in_float64(tensor: Tensor) -> Tensor:
    """The tensor in float64, on the CPU if its device has no such numbers."""
    return (tensor.cpu() if tensor.device.type in _WITHOUT_FLOAT64 else tensor).double()


def precise_dtype(device: torch.device) -> torch.dtype:
    """float64, or float32 where the device has no float64."""
    return torch.float32 if device.type in _WITHOUT_FLOAT64 else torch.float64


def back(value: Tensor, like: Tensor) -> Tensor:
    """What `in_float64` took to the CPU, on the device of `like` again; other values stay as they are."""
    return value.to(like) if like.device.type in _WITHOUT_FLOAT64 else value


class Precise(nn.Module):
    """A module whose float64 buffers stay on the CPU if it moves to a device without float64."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        kept = {name: b for name, b in self._buffers.items() if b is not None and b.dtype == torch.float64}
        if not kept or fn(torch.zeros(())).device.type not in _WITHOUT_FLOAT64:
            return super()._apply(fn, recurse)
        self._buffers.update(dict.fromkeys(kept))
        super()._apply(fn, recurse)
        self._buffers.update({name: buffer.cpu() for name, buffer in kept.items()})
        return self


# Random numbers -----------------------------------------------------------------------------------------------------


def normal(shape: Sequence[int], generator: torch.Generator | None, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Standard normal numbers on `device`, drawn there unless the generator is of another device.

    None draws from torch's global generator of the device.
    """
    there = device if generator is None else generator.device
    return moved(torch.randn(tuple(shape), generator=generator, dtype=dtype, device=there), device)


def make_generator(seed: int, device: torch.device) -> torch.Generator:
    """A generator of random numbers on `device`."""
    return torch.Generator(device=device).manual_seed(seed)


def mixed_seed(*parts: Any) -> int:
    """A seed that depends on all parts."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:7], "little")


def seed_random(seed: int, device: torch.device) -> None:
    """Seed torch's global generators of the CPU and of `device`, and no others."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cpu":
        return
    module: Any = torch.get_device_module(device)
    own = getattr(module, "default_generators", ())
    own[device.index or 0].manual_seed(seed) if own else module.manual_seed(seed)


def forked_random(device: torch.device) -> AbstractContextManager[None]:
    """Afterwards, torch's global generators of the CPU and of `device` have the states they had before."""
    return torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type)
