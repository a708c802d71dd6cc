"""Batches are augmented, single images are not."""

import torch

import paper.data
from paper.experiment import Order
from paper.tasks.cifar10 import cifar10
from paper.tasks.images import AugmentedImages
from pictures import pretend
from scenarios import images


def test_images_fetched_together_are_augmented_and_one_alone_is_not():
    x, y = images(20)
    data = AugmentedImages(x, y, shift=1, edges="reflect")
    assert torch.equal(data[3][0], x[3]) and len(data) == 20
    torch.manual_seed(1)
    batch = data.__getitems__([4, 2, 9])
    torch.manual_seed(1)
    expected = paper.data.augment(x[[4, 2, 9]], padding=1, mode="reflect")
    assert torch.equal(torch.stack([image for image, _ in batch]), expected)
    assert not torch.equal(expected, x[[4, 2, 9]])
    assert [int(label) for _, label in batch] == y[[4, 2, 9]].tolist()


def test_training_sees_augmented_images_and_what_is_learned_of_the_data_before_is_of_true_ones(monkeypatch):
    pretend(monkeypatch)
    experiment = cifar10(Order("cifar10", "fsvi", "smoke", context="monochrome"))
    augment, shapes = paper.data.augment, []

    def recorded(x, padding, mode):
        shapes.append((len(x), padding))
        return augment(x, padding=padding, mode=mode)

    monkeypatch.setattr(paper.data, "augment", recorded)
    method = experiment.build(0)
    experiment.train(method, 0, progress=False)
    assert shapes == [(24, 4), (24, 4)]
    assert torch.equal(method.context.contexts[1]._pixels, experiment.data[0])
