"""Devices: which one to use, moving tensors there, and random numbers there."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fsvi.errors import InvalidInputError
from fsvi.validation import first_line

if TYPE_CHECKING:
    from typing_extensions import Self

_ACCELERATORS = ("cuda", "xpu", "mps")
_WITHOUT_FLOAT64 = ("mps",)


def find_device(device: str | torch.device) -> torch.device:
    """The device of this name, after a trial allocation; "auto" is the first accelerator that works, or the CPU."""
    if isinstance(device, str) and device == "auto":
        usable = [name for name in _ACCELERATORS if torch.get_device_module(name).is_available()]
        return torch.device(usable[0] if usable else "cpu")
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        raise InvalidInputError(
            f'device={device!r} cannot be used: {first_line(error)}; device="auto" finds one that works.'
        ) from error


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on `device`; the program does not wait for a copy to an accelerator."""
    return tensor.to(device, non_blocking=device.type != "cpu")


def has_float64(device: torch.device) -> bool:
    """Whether the device can compute in float64."""
    return device.type not in _WITHOUT_FLOAT64


def in_float64(tensor: Tensor) -> Tensor:
    """The tensor in float64, on the CPU if its device has no such numbers."""
    return tensor.double() if has_float64(tensor.device) else tensor.cpu().double()


def precise_dtype(device: torch.device) -> torch.dtype:
    """float64, or float32 where the device has no float64."""
    return torch.float64 if has_float64(device) else torch.float32


def back(value: Tensor, like: Tensor) -> Tensor:
    """What `in_float64` took to the CPU, on the device of `like` again; other values stay as they are."""
    return value if has_float64(like.device) else value.to(like)


class Precise(nn.Module):
    """A module whose float64 buffers stay on the CPU if it moves to a device without float64."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        kept = {name: b for name, b in self._buffers.items() if b is not None and b.dtype == torch.float64}
        if not kept or has_float64(fn(torch.zeros(())).device):
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
    there = generator is None or generator.device.type == device.type
    noise = torch.randn(
        tuple(shape),
        generator=generator,
        dtype=dtype,
        device=device if there else generator.device,  # type: ignore[union-attr]
    )
    return noise if there else moved(noise, device)


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


@contextmanager
def forked_random(device: torch.device) -> Iterator[None]:
    """Afterwards, torch's global generators of the CPU and of `device` have the states they had before."""
    module: Any = torch.get_device_module(device)
    place = () if device.type == "mps" else (device,)
    state = None if device.type == "cpu" else module.get_rng_state(*place)
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            if state is not None:
                module.set_rng_state(state, *place)
