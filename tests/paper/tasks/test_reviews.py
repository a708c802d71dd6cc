"""Film reviews, with made-up texts."""

import pytest
import torch

from fsvi.errors import InvalidInputError
from fsvi.inputs import Bundle
from paper import data
from paper.experiment import Order
from paper.runs import checked
from paper.tasks.reviews import excerpts, reviews
from pictures import needs, pretend


def test_it_learns(monkeypatch):
    pretend(monkeypatch)
    experiment = reviews(Order("reviews", "map", "smoke", fit_settings={"epochs": 15, "batch_size": 16, "lr": 0.01}))
    method = experiment.build(0)
    experiment.train(method, 0, progress=False)
    found = experiment.evaluate(method).metrics
    assert found["accuracy"] > 0.9 and found["accuracy_shifted"] > 0.9


def test_excerpts_are_stretches_of_the_texts():
    ids = torch.arange(1, 101).expand(30, 100).clone()
    mask = torch.arange(100) < torch.arange(3, 33)[:, None] * 3
    mask[0] = torch.arange(100) < 3
    drawn = excerpts(Bundle({"input_ids": ids * mask, "attention_mask": mask})).data
    for excerpt, kept, text, words in zip(drawn["input_ids"], drawn["attention_mask"], ids, mask, strict=True):
        stretch = excerpt[kept].tolist()
        assert stretch == list(range(stretch[0], stretch[0] + len(stretch)))
        assert min(5, int(words.sum())) <= len(stretch) <= 40 and set(stretch) <= set(text[words].tolist())
        assert bool((excerpt[~kept] == 0).all())


@pytest.mark.parametrize("context", ["rotten-tomatoes", "monochrome"])
def test_other_contexts_are_refused(context):
    with pytest.raises(InvalidInputError, match="context"):
        checked(Order("reviews", "fsvi", context=context))


@pytest.mark.data
@needs(("imdb", "train"), ("rotten-tomatoes", "test"))
def test_the_published_texts():
    sizes = {split: len(data.load("imdb", split)) for split in ("train", "validation", "test")}
    assert sizes == {"train": 19_924, "validation": 2_490, "test": 2_490}
    assert len(data.load("rotten-tomatoes", "test")) == 8_530
