"""Film reviews in place of real ones."""

import random

import torch

from paper.data import DataSplit

WORDS = ("the", "film", "plot", "actor", "scene", "and", "a", "with")


def make_up(name, split, num=160):
    """Texts whose label shows in one word: reviews of IMDB are long, those of Rotten Tomatoes short."""
    rng = random.Random(f"{name} {split}")
    labels = [i % 2 for i in range(num)]
    most = 40 if name == "imdb" else 8
    texts = []
    for label in labels:
        words = [rng.choice(WORDS) for _ in range(rng.randint(most // 2, most))]
        texts.append(" ".join([*words, "great" if label else "awful"]))
    return DataSplit(tuple(texts), torch.tensor(labels), name, split, sha256=f"{name} {split}")
