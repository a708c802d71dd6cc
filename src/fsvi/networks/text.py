"""A small transformer encoder for texts of token ids."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fsvi.errors import InvalidInputError
from fsvi.validation import check_count, check_fraction


class _Block(nn.Module):
    """Attention between the tokens of a text, then a dense layer per token; each is added to what came before.

    Both see normalized tokens (pre-norm), which trains without a warm-up of the learning rate.
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dense = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor, bias: Tensor) -> Tensor:
        tokens = tokens + self.dropout(self._attend(self.norm1(tokens), bias))
        return tokens + self.dropout(self.dense(self.norm2(tokens)))

    def _attend(self, tokens: Tensor, bias: Tensor) -> Tensor:
        """Written out, because PyTorch's fused attention has no forward-mode derivatives, which "jvp" needs."""
        query, key, value = self.project(tokens).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2) + bias
        return self.mix((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))


class TextEncoder(nn.Module):
    """A small transformer encoder: words and their places, blocks of attention, the mean over words, a linear head.

    Its inputs are token ids `input_ids` (n, words) and, for texts of different lengths, `attention_mask` (n, words),
    which is zero at padding. `fsvi.data.Vocabulary` makes both from texts.

    Args:
        vocabulary: The number of different ids.
        num_classes: Number of outputs.
        width: The number of features per word, a multiple of `heads`.
        layers: The number of blocks; with 0 the encoder is a mean of normalized word vectors.
        heads: Attention heads per block.
        length: The largest number of words per text.
        dropout: Probability of dropping a feature: of words, of what a block adds, and of the mean.
    """

    def __init__(
        self,
        vocabulary: int,
        num_classes: int = 2,
        *,
        width: int = 32,
        layers: int = 1,
        heads: int = 1,
        length: int = 256,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.vocabulary = check_count("vocabulary", vocabulary)
        self.num_classes = check_count("num_classes", num_classes)
        self.width = check_count("width", width)
        self.layers = check_count("layers", layers, least=0)
        self.heads = check_count("heads", heads)
        self.length = check_count("length", length)
        self.dropout = check_fraction("dropout", dropout)
        if width % heads:
            raise InvalidInputError(f"width={width} is not a multiple of heads={heads}: every head needs equal parts.")
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        nn.init.normal_(self.tokens.weight, std=width**-0.5)
        nn.init.normal_(self.places.weight, std=0.1 * width**-0.5)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(_Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Logits (n, classes) of texts (n, words); the mask is zero at padding, None for no padding."""
        if input_ids.shape[1] > self.places.num_embeddings:
            raise ValueError(f"texts of {input_ids.shape[1]} words are longer than length={self.places.num_embeddings}")
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        weights = (mask != 0).to(self.head.weight.dtype)
        tokens = self.drop(self.tokens(input_ids) + self.places.weight[: input_ids.shape[1]])
        bias = ((1.0 - weights) * torch.finfo(weights.dtype).min)[:, None, None, :]
        for block in self.blocks:
            tokens = block(tokens, bias)
        total = (self.norm(tokens) * weights[..., None]).sum(1)
        features: Tensor = total / weights.sum(1, keepdim=True).clamp_min(1.0)
        logits: Tensor = self.head(self.drop(features))
        return logits
