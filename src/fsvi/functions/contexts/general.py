"""Context distributions: where the posterior over functions is compared with the prior.

A context draws points. It learns what it needs about the training data in `prepare`, which `fit` calls with training
inputs, already normalized as the network sees them.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fsvi.errors import InvalidInputError
from fsvi.inputs import (
    Bundle,
    Inputs,
    bundle,
    concatenate,
    describe_inputs,
    is_graph_batch,
    is_structured,
    signature,
    tensors_of,
    without_targets,
)
from fsvi.networks.devices import moved
from fsvi.networks.network import Network
from fsvi.serialization import Configurable, digest
from fsvi.validation import as_tensor, check_inputs, check_positive, check_type

_PERMUTED = 100_000
"""Up to this size, points are drawn by permuting the whole data set."""
_POSITIONS = 4
"""Context points per context input, where points are positions of an input's outputs."""
_GRID = 4
"""The number of patches per side that `Corrupted` shuffles."""


class Context(Configurable, ABC):
    """A distribution over inputs of the network. To add one, implement `sample`.

    Inputs are a tensor, or an `fsvi.inputs.Bundle` of several tensors: `batch["input_ids"]` is a tensor of it,
    `batch[rows]` are some of its examples. A context returns a tensor, a `Bundle`, or a dictionary or tuple of tensors.
    """

    example: Any = None
    """a few inputs of the network, if the context knows any before it has seen data"""

    def __deepcopy__(self, memo: Any) -> Context:
        """A copy that learns about the training data by itself; data of its own are shared."""
        return copy.copy(self)

    def prepare(self, x: Tensor) -> None:
        """Look at training inputs `x` before training starts."""

    def fingerprint(self) -> Any:
        """Checksums of tensors that points are drawn from, which `config` leaves out; None without any."""
        own = {name: value for name, value in vars(self).items() if name in self._transient}
        held = [tensors_of(value, name) for name, value in own.items() if isinstance(value, (Tensor, Bundle))]
        return digest({name: tensor for tensors in held for name, tensor in tensors.items()}) if held else None

    @abstractmethod
    def sample(self, num: int, batch: Any) -> Any:
        """Draw points.

        Args:
            num: The number of points.
            batch: The inputs of the current minibatch; points have their device and the shape of one input.

        Returns:
            Points, (num, ...).
        """


class Uniform(Context):
    """Uniform over a box.

    Args:
        low: The lower bound, a number or of the shape of one input; None takes the training data's.
        high: The upper bound, likewise.
        widen: By which multiple of the data's range to extend the data's bounds on both sides.
    """

    def __init__(self, low: Any = None, high: Any = None, widen: float = 0.0) -> None:
        if (low is None) != (high is None):
            raise InvalidInputError("Uniform needs both low and high, or neither for the training data's own bounds.")
        self.low, self.high, self.widen = low, high, check_positive("widen", widen, zero=True)
        self._bounds = None if low is None else _box(low, high)
        if self._bounds is not None and self._bounds[0].dim() > 0:
            self.example = torch.stack(self._bounds)

    def prepare(self, x: Tensor) -> None:
        """Take the data's bounds if none were given."""
        if isinstance(x, Bundle) or not x.is_floating_point():
            raise InvalidInputError(
                f"Uniform needs inputs that are one tensor of real numbers, not {describe_inputs(x)}: for token ids "
                "use fsvi.contexts.Batch, Dataset (other texts), ShuffledTokens or ReplacedTokens."
            )
        if self.low is None:
            low, high = x.amin(0), x.amax(0)
            margin = self.widen * (high - low)
            self._bounds = low - margin, high + margin

    def sample(self, num: int, batch: Tensor) -> Tensor:
        """Independent uniform points."""
        if self._bounds is None:
            self.prepare(batch)
        assert self._bounds is not None
        low, high = self._bounds = self._bounds[0].to(batch.device), self._bounds[1].to(batch.device)
        shape = low.shape or batch.shape[1:]
        return torch.lerp(low, high, torch.rand(num, *shape, device=batch.device, dtype=low.dtype))


class Monochrome(Context):
    """Images of one color: every channel is filled with a pixel drawn at random from that channel of the images.

    Args:
        images: The images, (n, channels, height, width); None takes the training images, or for a DataLoader the sample
            of them that `fit` looks at first.
    """

    _transient = ("images",)

    def __init__(self, images: Any = None) -> None:
        self.images = None if images is None else _check_images("Monochrome", torch.as_tensor(images))
        self._pixels = self.images

    def prepare(self, x: Tensor) -> None:
        """Take the pixels of the training images; no copy is made."""
        _check_images("Monochrome", x)
        if self.images is None:
            self._pixels = x

    def sample(self, num: int, batch: Tensor) -> Tensor:
        """One pixel per channel, independently, spread over the image."""
        images = _check_images("Monochrome", batch) if self._pixels is None else self._pixels
        count, channels, height, width = images.shape
        device = images.device
        n, row, column = (torch.randint(size, (num, channels), device=device) for size in (count, height, width))
        colors = moved(images[n, torch.arange(channels, device=device), row, column], batch.device)
        return colors[:, :, None, None].expand(num, channels, *batch.shape[2:]).to(batch)


class Dataset(Context):
    """Any unlabeled data: other images, other texts.

    Args:
        data: A tensor of inputs, a dictionary or tuple of tensors, a batch of graphs, or a dataset whose items are
            inputs or (input, label) pairs. Labels in dictionaries are left out.
    """

    _transient = ("data",)

    def __init__(self, data: Any) -> None:
        if isinstance(data, Mapping) or is_graph_batch(data) or (isinstance(data, tuple) and is_structured(data)):
            data = bundle(without_targets(data) if isinstance(data, Mapping) else data, as_tensor)
        if data is not None and not hasattr(data, "__len__"):
            raise InvalidInputError(f"Dataset needs a tensor or a map-style dataset, not {type(data).__name__}.")
        if data is not None and len(data) == 0:
            raise InvalidInputError("Dataset is empty: context points cannot be drawn from it.")
        tensors = data.leaves() if isinstance(data, Bundle) else [data] if isinstance(data, Tensor) else []
        if not all(bool(tensor.isfinite().all()) for tensor in tensors if tensor.is_floating_point()):
            raise InvalidInputError("Dataset holds NaN or infinite values: clean or drop those inputs.")
        self.data = data
        device = data.device if isinstance(data, Tensor) else None
        self.example = None if data is None else self._take(torch.arange(min(2, len(data)), device=device))

    def sample(self, num: int, batch: Tensor) -> Tensor:
        """Points drawn without replacement, or with replacement if there are too few, or very many."""
        if self.data is None:
            raise InvalidInputError("this context's data was not saved: set method.context to go on training.")
        size = len(self.data)
        repeats = num > size or size > _PERMUTED
        device = self.data.device if isinstance(self.data, Tensor) else torch.device("cpu")
        index = torch.randint(size, (num,), device=device) if repeats else torch.randperm(size, device=device)[:num]
        return moved(self._take(index), batch.device)

    def _take(self, index: Tensor) -> Any:
        if isinstance(self.data, Tensor):
            return self.data.index_select(0, index)  # faster than data[index]
        if isinstance(self.data, Bundle):
            return self.data[index]
        items = [self.data[i] for i in index.tolist()]
        inputs = [item[0] if isinstance(item, (tuple, list)) else item for item in items]
        if is_structured(inputs[0]):
            rows = [without_targets(item) if isinstance(item, Mapping) else item for item in inputs]
            return concatenate([bundle(row, lambda name, value: as_tensor(name, value)[None]) for row in rows])
        tensors = [as_tensor("an item of Dataset", item) for item in inputs]
        _check_shapes("items of Dataset", [tensor.shape for tensor in tensors])
        return torch.stack(tensors)


class Batch(Context):
    """The training minibatch itself: points of it, drawn without replacement where it is large enough."""

    def sample(self, num: int, batch: Tensor) -> Tensor:
        """Rows of the minibatch."""
        if num <= len(batch):
            return batch[torch.randperm(len(batch), device=batch.device)[:num]]
        return batch[torch.randint(len(batch), (num,), device=batch.device)]


class Corrupted(Context):
    """Corrupted training images: noise, shuffled patches, inverted contrast, a quarter turn or an enlarged detail, one
    drawn per image.

    Args:
        noise: The standard deviation of the added noise, in units of the batch's own.
    """

    def __init__(self, noise: float = 1.0) -> None:
        self.noise = check_positive("noise", noise, zero=True)

    def sample(self, num: int, batch: Tensor) -> Tensor:
        """Minibatch images, each with one corruption."""
        _check_images("Corrupted", batch)
        device = batch.device
        images = batch[torch.randint(len(batch), (num,), device=device)]
        low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
        noisy, inverted = images + self.noise * images.std() * torch.randn_like(images), low + high - images
        turned = images.rot90(1, (2, 3)) if images.shape[-1] == images.shape[-2] else images.flip(2)
        spoiled = torch.stack([noisy, _shuffled(images), inverted, turned, _enlarged(images)])
        return spoiled[torch.randint(len(spoiled), (num,), device=device), torch.arange(num, device=device)]


class Mixture(Context):
    """Several contexts, each giving its fraction of every set: `Mixture([Batch(), Monochrome()], [0.5, 0.5])`.

    Args:
        contexts: The contexts.
        fractions: Their shares of the points, which sum to 1.
    """

    def __init__(self, contexts: Sequence[Context], fractions: Sequence[float]) -> None:
        if len(contexts) != len(fractions) or not contexts:
            raise InvalidInputError(f"Mixture has {len(contexts)} contexts and {len(fractions)} fractions.")
        if min(fractions) < 0 or abs(sum(fractions) - 1) > 1e-6:
            raise InvalidInputError(f"fractions={list(fractions)} must not be negative and must sum to 1.")
        self.contexts, self.fractions = list(contexts), list(fractions)
        self.example = next((context.example for context in contexts if context.example is not None), None)

    def __deepcopy__(self, memo: Any) -> Mixture:
        """A mixture of copies."""
        return Mixture(copy.deepcopy(self.contexts, memo), self.fractions)

    def prepare(self, x: Tensor) -> None:
        """Prepare every part."""
        for context in self.contexts:
            context.prepare(x)

    def fingerprint(self) -> list[Any]:
        """The checksums of all parts."""
        return [context.fingerprint() for context in self.contexts]

    def sample(self, num: int, batch: Tensor) -> Tensor:
        """The points of all parts, concatenated."""
        ends = [round(num * share) for share in accumulate(self.fractions, initial=0.0)]
        counts = [end - start for start, end in pairwise(ends)]
        parts = [c.sample(count, batch) for c, count in zip(self.contexts, counts, strict=True) if count]
        if not isinstance(batch, Tensor):
            return concatenate([bundle(part, as_tensor) if is_structured(part) else part for part in parts])
        _check_shapes("the parts of the mixture", [part.shape[1:] for part in parts])
        return torch.cat([part.to(batch.dtype) for part in parts])


def _check_shapes(name: str, shapes: Sequence[torch.Size]) -> None:
    different = sorted({tuple(shape) for shape in shapes})
    if len(different) > 1:
        raise InvalidInputError(f"{name} have different shapes, {different[0]} and {different[1]}: give one shape.")


def _check_images(name: str, x: Tensor) -> Tensor:
    if isinstance(x, Bundle):
        raise InvalidInputError(f"{name} needs images in one tensor, not {describe_inputs(x)}.")
    if x.dim() != 4:
        raise InvalidInputError(f"{name} needs images (n, channels, height, width), not {tuple(x.shape)}.")
    return x


def _box(low: Any, high: Any) -> tuple[Tensor, Tensor]:
    bounds = as_tensor("low", low).float(), as_tensor("high", high).float()
    try:
        lower, upper = torch.broadcast_tensors(*bounds)
    except RuntimeError as error:
        shapes = " and ".join(str(tuple(bound.shape)) for bound in bounds)
        raise InvalidInputError(f"Uniform's low and high have shapes {shapes}, which do not fit together.") from error
    if not bool((lower < upper).all()) or not bool((lower.isfinite() & upper.isfinite()).all()):
        raise InvalidInputError(f"Uniform needs finite low < high in every dimension, not low={low}, high={high}.")
    return lower, upper


def _shuffled(images: Tensor) -> Tensor:
    """The patches of a grid over each image in random order."""
    num, _, height, width = images.shape
    rows, columns = height // _GRID, width // _GRID
    if rows == 0 or columns == 0:
        return images.flip(-1)
    size, patch = (rows * _GRID, columns * _GRID), (rows, columns)
    patches = F.unfold(images[..., : size[0], : size[1]], patch, stride=patch)
    order = torch.rand(num, 1, _GRID**2, device=images.device).argsort(2)
    result = images.clone()
    result[..., : size[0], : size[1]] = F.fold(patches.take_along_dim(order, 2), size, patch, stride=patch)
    return result


def _enlarged(images: Tensor) -> Tensor:
    """A random part of each image, a quarter to a half of its sides, at the size of the whole: colors and edges like
    those of the image, without its object."""
    num, device = len(images), images.device
    size = 0.25 + 0.25 * torch.rand(num, 1, device=device)
    center = (1 - size) * (2 * torch.rand(num, 2, device=device) - 1)
    part = torch.cat([torch.diag_embed(size.expand(-1, 2)), center[:, :, None]], 2)
    grid = F.affine_grid(part, list(images.shape), align_corners=False)
    return F.grid_sample(images.float(), grid, padding_mode="reflection", align_corners=False).to(images.dtype)


# Points for a method --------------------------------------------------------------------------------------------------


def own_context(context: Context | None) -> Context | None:
    """A copy of the user's context; None where it is not known yet, as in a file without data."""
    if context is None:
        return None
    check_type("context", context, Context, "a context such as fsvi.contexts.Dataset(tensor)")
    return copy.deepcopy(context)


def context_points(network: Network, context: Context | None, num: int, x: Inputs) -> Any:
    """`num` context points for the minibatch `x`; of outputs at every position, positions of a few inputs."""
    if context is None:
        raise InvalidInputError(
            "the method has no context: pass context=, for example fsvi.contexts.Uniform(low=..., high=...)."
        )
    positions = network.layout.positions
    points = context.sample(math.ceil(num / min(_POSITIONS, math.prod(positions))) if positions else num, x)
    if isinstance(points, Tensor) and isinstance(x, Tensor):
        points = points.to(x.dtype)
    elif is_structured(points):
        points = check_inputs(points, network.dtype)
    is_alike = isinstance(points, Tensor) and isinstance(x, Tensor) and points.shape[1:] == x.shape[1:]
    if not is_alike and signature(points) != signature(x):
        raise InvalidInputError(
            f"context points have {describe_inputs(points)}, but the network's inputs have {describe_inputs(x)}: "
            "give a context of the inputs' shape."
        )
    return network.at_positions(network.arranged(points), num) if positions else network.arranged(points)
