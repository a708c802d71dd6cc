"""Contexts for texts: token ids of the minibatch, in another order or replaced."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fsvi.errors import InvalidInputError
from fsvi.functions.contexts.general import Context
from fsvi.inputs import Bundle, Inputs, describe_inputs
from fsvi.validation import check_count, check_positive


class _Tokens(Context):
    """Texts of the minibatch with other tokens where the mask allows it."""

    def __init__(self, ids: str = "input_ids", mask: str = "attention_mask") -> None:
        self.ids, self.mask = ids, mask

    def sample(self, num: int, batch: Inputs) -> Any:
        """Texts of the minibatch, changed."""
        chosen = batch[torch.randint(len(batch), (num,), device=batch.device)]
        ids, mask = self._parts(chosen)
        changed = self._change(ids, mask)
        if isinstance(chosen, Tensor):
            return changed
        return chosen.named_map(lambda name, leaf: changed if name == self.ids else leaf)

    def _parts(self, chosen: Inputs) -> tuple[Tensor, Tensor]:
        """The ids, and where they are not padding."""
        tree = chosen.tree if isinstance(chosen, Bundle) else {self.ids: chosen}
        ids = tree.get(self.ids) if isinstance(tree, dict) else None
        if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.dim() != 2:
            raise InvalidInputError(
                f"{type(self).__name__} needs integer token ids (n, length) under {self.ids!r}, not "
                f"{describe_inputs(chosen)}."
            )
        mask = tree.get(self.mask)
        if mask is None:
            return ids, torch.ones_like(ids, dtype=torch.bool)
        if mask.shape != ids.shape:
            raise InvalidInputError(
                f"{self.mask} has shape {tuple(mask.shape)}, but {self.ids} {tuple(ids.shape)}: a mask needs one "
                "number per token."
            )
        return ids, mask != 0

    def _change(self, ids: Tensor, mask: Tensor) -> Tensor:
        raise NotImplementedError


class ShuffledTokens(_Tokens):
    """Texts of the minibatch with their tokens in random order: the right words, but no sentence.

    Args:
        ids: The name of the token ids (n, T) in dictionaries of inputs; inputs of one tensor are the ids themselves.
        mask: The name of the mask, which is zero at padding; without a mask of that name, all positions are text.
        keep_first: How many tokens at the start of each text stay in place, such as a class token.
    """

    def __init__(self, ids: str = "input_ids", mask: str = "attention_mask", keep_first: int = 0) -> None:
        super().__init__(ids, mask)
        self.keep_first = check_count("keep_first", keep_first, least=0)

    def _change(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Sort the free positions of each text by random keys; all others keep their places."""
        places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        free = mask & (places >= self.keep_first)
        # The i-th free place of a text receives the token from the place with the i-th smallest key.
        order = torch.where(free, places, ids.shape[1]).argsort(dim=1, stable=True)
        keys = torch.rand(ids.shape, device=ids.device).masked_fill(~free, 2.0)
        source = keys.argsort(dim=1, stable=True)  # stable, so that all others stay where they are
        return ids.clone().scatter_(1, order, ids.gather(1, source))


class ReplacedTokens(_Tokens):
    """Texts of the minibatch in which some tokens are masked, or replaced by tokens of other texts.

    Args:
        fraction: The share of tokens that is replaced, on average.
        token: What they become, such as the id of the mask token; None draws tokens from the minibatch.
        ids: The name of the token ids (n, T) in dictionaries of inputs; inputs of one tensor are the ids themselves.
        mask: The name of the mask, which is zero at padding; without a mask of that name, all positions are text.
    """

    def __init__(
        self,
        fraction: float = 0.5,
        token: int | None = None,
        ids: str = "input_ids",
        mask: str = "attention_mask",
    ) -> None:
        super().__init__(ids, mask)
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
