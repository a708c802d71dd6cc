"""Film reviews, with made-up texts."""

import pytest
import torch

from fsvi.errors import InvalidInputError
from fsvi.inputs import Bundle
from paper import data
from paper.experiment import Order
from paper.runs import checked, run
from paper.tasks.reviews import excerpts, reviews
from pictures import needs
from review_texts import make_up


@pytest.fixture
def asked(monkeypatch):
    """Replaces the loading of texts by made-up ones; the names and splits that are asked for."""
    asked = []

    def load_texts(name, split="train"):
        asked.append((name, split))
        return make_up(name, split)

    monkeypatch.setattr(data, "load_texts", load_texts)
    monkeypatch.setattr(data, "ensure", lambda name, split: None)
    return asked


@pytest.mark.parametrize(
    ("method", "context"),
    [
        ("map", None),
        ("mc-dropout", None),
        ("ensemble:map", None),
        *(("fsvi", c) for c in (None, "shuffled", "replaced")),
    ],
)
@pytest.mark.filterwarnings("ignore:.*has no diagnosis")
def test_a_run_from_texts_to_the_curves(asked, tmp_path, method, context):
    result = run(Order("reviews", method, "smoke", context=context), tmp_path, progress=False)
    assert {"accuracy", "ece_15", "aurc", "nll_shifted", "accuracy_referred_50_shifted"} <= set(result.metrics)
    assert 0 <= result.metrics["auroc_own_rotten-tomatoes"] <= 1
    for figure in ("referral", "entropy"):
        assert set(result.curves[figure]) == {"in_domain", "shifted"}
    assert result.curves["referral"]["shifted"]["accuracy"][0] == pytest.approx(
        result.metrics["accuracy_shifted"], abs=1e-5
    )
    assert result.context == (context or ("excerpts" if method == "fsvi" else None))
    assert any("128 training texts" in note for note in result.notes)
    assert ("rotten-tomatoes", "train") not in asked and ("imdb", "validation") not in asked


def test_nothing_of_the_tests_is_loaded_before_the_evaluation(asked):
    experiment = reviews(Order("reviews", "fsvi", "smoke", context="excerpts"))
    experiment.train(experiment.build(0), 0, progress=False)
    assert asked == [("imdb", "train")]
    x, y = experiment.validation()
    assert asked[1:] == [("imdb", "validation")] and len(x) == len(y)


def test_it_learns(asked):
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
    sizes = {split: len(data.load_texts("imdb", split)) for split in ("train", "validation", "test")}
    assert sizes == {"train": 19_924, "validation": 2_490, "test": 2_490}
    assert len(data.load_texts("rotten-tomatoes", "test")) == 8_530
