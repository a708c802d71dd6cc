"""Texts as numbers: a vocabulary of words, made from training texts, turns texts into ids and masks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from fsvi.errors import InvalidInputError
from fsvi.validation import check_count

PADDING, UNKNOWN = 0, 1
"""The ids of padding and of words that the vocabulary does not have."""

_MARKUP = re.compile(r"<[^<>]{1,40}>")
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*|[!?]")


def split_words(text: str) -> list[str]:
    """The lower-case words of a text, and its exclamation and question marks; tags such as <br /> are left out."""
    return _WORD.findall(_MARKUP.sub(" ", text.lower().replace("’", "'")))


class Vocabulary:
    """The words that a network knows, with ids from 2 on; 0 is padding and 1 any other word.

    Args:
        words: The words in the order of their ids, each once.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self.words = tuple(words)
        self._ids: Mapping[str, int] = {word: i for i, word in enumerate(self.words, start=UNKNOWN + 1)}
        if len(self._ids) < len(self.words):
            repeated = next(word for word, count in Counter(self.words).items() if count > 1)
            raise InvalidInputError(f"words has {repeated!r} more than once: each word needs one id.")

    @classmethod
    def of(cls, texts: Iterable[str], size: int = 20_000, least: int = 2) -> Vocabulary:
        """The most frequent words of training texts; of equally frequent words, the first in the alphabet.

        Args:
            texts: The training texts.
            size: The largest number of ids, with those of padding and unknown words.
            least: How often a word must occur.
        """
        check_count("size", size, least=UNKNOWN + 2)
        check_count("least", least)
        counts = Counter(word for text in texts for word in split_words(text))
        frequent = (word for word, count in counts.items() if count >= least)
        return cls(sorted(frequent, key=lambda word: (-counts[word], word))[: size - UNKNOWN - 1])

    def __len__(self) -> int:
        """The number of ids."""
        return len(self.words) + UNKNOWN + 1

    def encode(self, texts: Sequence[str], length: int = 256) -> dict[str, Tensor]:
        """Ids and mask of texts, as the arguments `input_ids` and `attention_mask` of a network.

        Texts are padded at the end to the longest of them. A text without any word becomes one unknown word, because a
        mean over no words does not exist.

        Args:
            texts: The texts.
            length: How many words are kept of a longer text, those at its end.

        Returns:
            `input_ids` (n, words) int64, and `attention_mask` (n, words) bool, which is False at padding.
        """
        check_count("length", length)
        if isinstance(texts, str) or len(texts) == 0:
            raise InvalidInputError("texts must be a list of at least one text.")
        rows = [split_words(text)[-length:] for text in texts]
        numbers = [[self._ids.get(word, UNKNOWN) for word in row] or [UNKNOWN] for row in rows]
        ids = torch.nn.utils.rnn.pad_sequence(list(map(torch.tensor, numbers)), True, PADDING)
        return {"input_ids": ids, "attention_mask": ids != PADDING}
