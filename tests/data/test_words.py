"""Words, vocabularies, ids and masks."""

import pytest
import torch

from fsvi.data.words import PADDING, UNKNOWN, Vocabulary, split_words

TEXTS = ["Good, good film!", "a good plot", "a film<br /><br />not seen"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It's GOOD, isn't it?!", ["it's", "good", "isn't", "it", "?", "!"]),
        ("one.<br /><br />Two", ["one", "two"]),
        ("the critic’s café in 1967", ["the", "critic's", "café", "in", "1967"]),
        ("a_b 'quoted' 3 < 4", ["a", "b", "quoted", "3", "4"]),
        ("...", []),
    ],
)
def test_words_of_a_text(text, words):
    assert split_words(text) == words


def test_frequent_words_come_first_and_rare_ones_are_left_out():
    assert Vocabulary.of(TEXTS).words == ("good", "a", "film")
    assert Vocabulary.of(TEXTS, size=4).words == ("good", "a")
    assert Vocabulary.of(TEXTS, least=1).words == ("good", "a", "film", "!", "not", "plot", "seen")


def test_ids_and_mask():
    vocabulary = Vocabulary(["good", "film"])
    found = vocabulary.encode(["good film", "a good, good film"])
    assert len(vocabulary) == 4
    assert found["input_ids"].tolist() == [[2, 3, PADDING, PADDING], [UNKNOWN, 2, 2, 3]]
    assert found["attention_mask"].tolist() == [[True, True, False, False], [True] * 4]
    assert found["input_ids"].dtype == torch.int64
