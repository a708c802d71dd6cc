import pytest
import torch

import paper.data
from paper.experiment import Order
from paper.tasks.diabetic_retinopathy import photograph_poorly, retina
from paper.tuning import held_out
from pictures import Oracle, make_up, pretend

SMOKE = Order("retina", "map", "smoke")


def test_the_stand_in_is_tuned_by_its_own_validation_split_of_other_patients(monkeypatch):
    asked = pretend(monkeypatch, note="DeepDRiD in place of EyePACS")
    experiment = retina(SMOKE)
    part, (x, y) = held_out(experiment, 0)
    assert asked == [("retina", "train"), ("retina", "validation")]
    assert part is experiment and len(x) == len(y) == 24
    own = paper.data.Normalize.of(experiment.sources[0].x)
    small = torch.nn.functional.avg_pool2d(make_up("retina", "validation", 24).x.float(), 4).round().byte()
    assert torch.equal(x, own(small))


def test_aptos_is_the_shifted_set_where_it_is_to_be_had(monkeypatch):
    asked = pretend(monkeypatch, absent=())
    found = retina(SMOKE).evaluate(Oracle(lambda x: torch.full((len(x), 2), 0.5)))
    assert ("aptos", "test") in asked
    assert [source.name for source in found.sources] == ["retina", "aptos"]
    assert not any("imitated" in source.note for source in found.sources)


def test_referral_and_the_nhs_point_of_a_case_worked_by_hand(monkeypatch):
    """24 photographs, 12 of them ill, by turns.

    The ill get 0.9 but for three that get 0.45, 0.2 and 0.05; the healthy 0.1, but for three with 0.55, 0.49 and 0.46.
    So at most two of twelve healthy ones (17%) may be taken for ill: those above 0.46, where the ill with 0.9 are, 9 of
    12. At half referral the twelve most certain are kept: 0.05 (wrong), and 11 of the 18 at 0.9 and 0.1 (right).
    """
    pretend(monkeypatch)
    ill = torch.tensor([0.45, 0.2, 0.05] + [0.9] * 9)
    healthy = torch.tensor([0.55, 0.49, 0.46] + [0.1] * 9)
    probability = torch.stack([healthy, ill], 1).flatten().double()
    found = retina(SMOKE).evaluate(Oracle(lambda x: torch.stack([1 - probability, probability], 1)))
    assert found.metrics["sensitivity_nhs"] == pytest.approx(9 / 12)
    assert found.metrics["accuracy"] == pytest.approx((9 + 11) / 24)
    assert found.metrics["accuracy_referred_50"] == pytest.approx(11 / 12)
    assert found.metrics["auroc"] == pytest.approx((9 * 12 + 9 + 9) / 144)
    assert found.metrics["auroc_shifted"] == found.metrics["auroc"]


def test_the_shifted_figures_are_of_the_shifted_photographs(monkeypatch):
    """Illness is brightness in the made-up photographs, and the poorer camera makes them dim."""
    pretend(monkeypatch)
    experiment = retina(SMOKE)
    brightest = float(experiment.data[0].mean((1, 2, 3)).max())

    def answer(x):
        bright = (x.mean((1, 2, 3)) > 0.8 * brightest).double()
        return torch.stack([0.9 - 0.8 * bright, 0.1 + 0.8 * bright], 1)

    found = experiment.evaluate(Oracle(answer))
    assert found.metrics["accuracy"] == 1
    assert found.metrics["accuracy_shifted"] < 1
    assert found.curves["roc"]["in_domain"]["tpr"][1] == 1


def test_the_poorer_camera_dims_each_channel_and_blurs():
    grey = torch.full((2, 3, 8, 8), 100, dtype=torch.uint8)
    taken = photograph_poorly(grey)
    assert taken.dtype == torch.uint8 and taken[0, :, 3, 3].tolist() == [90, 80, 60]
    stripes = torch.tensor([0, 200] * 4, dtype=torch.uint8).expand(1, 3, 8, 8)
    assert photograph_poorly(stripes)[0, 0].unique().tolist() == [90]


@pytest.mark.parametrize(("note", "batch_size"), [("", 256), ("DeepDRiD in place of EyePACS", 64)])
def test_the_stand_in_has_smaller_batches(monkeypatch, note, batch_size):
    pretend(monkeypatch, num=4, note=note)
    experiment = retina(Order("retina", "fsvi", "paper", context="monochrome"))
    assert experiment.fit_settings["batch_size"] == batch_size
