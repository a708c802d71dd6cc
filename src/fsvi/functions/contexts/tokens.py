"""Contexts for texts: token ids of the minibatch, in another order or replaced."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from fsvi.errors import InvalidInputError
from fsvi.functions.contexts.general import Context
from fsvi.inputs import Bundle, Inputs, describe_inputs
from fsvi.validation import check_count, check_positive

_IDS, _MASK = "input_ids", "attention_mask"


class _Tokens(Context):
    """Texts of the minibatch with other tokens where the mask allows it.

    Inputs are token ids (n, length), or a dictionary with these as `input_ids`. Its `attention_mask`, if there is one,
    is zero at padding.
    """

    def sample(self, num: int, batch: Inputs) -> Any:
        """Texts of the minibatch, changed."""
        chosen = batch[torch.randint(len(batch), (num,), device=batch.device)]
        changed = self._change(*_ids_and_mask(type(self).__name__, chosen))
        if isinstance(chosen, Tensor):
            return changed
        return chosen.named_map(lambda name, leaf: changed if name == _IDS else leaf)

    @abstractmethod
    def _change(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Other ids where the mask is true."""


class ShuffledTokens(_Tokens):
    """Texts of the minibatch with their tokens in random order: the right words, but no sentence."""

    def _change(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Sort the tokens of each text by random keys; padding keeps its place."""
        places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        # The i-th word of a text is replaced by the one with the i-th smallest key.
        order = torch.where(mask, places, ids.shape[1]).argsort(dim=1, stable=True)
        keys = torch.rand(ids.shape, device=ids.device).masked_fill(~mask, 2.0)
        source = keys.argsort(dim=1, stable=True)  # stable, so that padding stays where it is
        return ids.clone().scatter_(1, order, ids.gather(1, source))


class ReplacedTokens(_Tokens):
    """Texts of the minibatch in which some tokens are masked, or replaced by tokens of other texts.

    Args:
        fraction: The share of tokens that is replaced, on average.
        token: What they become, such as the id of the mask token; None draws tokens from the minibatch.
    """

    def __init__(self, fraction: float = 0.5, token: int | None = None) -> None:
        self.fraction = check_positive("fraction", fraction)
        if self.fraction > 1:
            raise InvalidInputError(f"fraction={fraction} must be at most 1.")
        self.token = None if token is None else check_count("token", token, least=0)

    def _change(self, ids: Tensor, mask: Tensor) -> Tensor:
        chosen = mask & (torch.rand(ids.shape, device=ids.device) < self.fraction)
        if self.token is not None:
            return torch.where(chosen, self.token, ids)
        # Positions of text come first, so a random number below their count chooses one without waiting for the device.
        order = (~mask).flatten().argsort(stable=True)
        drawn = (torch.rand(ids.shape, device=ids.device) * mask.sum()).long().clamp(max=mask.sum() - 1)
        return torch.where(chosen, ids.flatten()[order[drawn]], ids)


def _ids_and_mask(context: str, x: Inputs) -> tuple[Tensor, Tensor]:
    """The ids, and where they are not padding."""
    tree = x.tree if isinstance(x, Bundle) else {_IDS: x}
    ids = tree.get(_IDS) if isinstance(tree, dict) else None
    if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.dim() != 2:
        raise InvalidInputError(
            f"{context} needs integer token ids (n, length) under {_IDS!r}, not {describe_inputs(x)}."
        )
    mask = tree.get(_MASK, torch.ones_like(ids))
    if mask.shape != ids.shape:
        raise InvalidInputError(
            f"{_MASK} has shape {tuple(mask.shape)}, but {_IDS} {tuple(ids.shape)}: a mask needs one number per token."
        )
    return ids, mask != 0
