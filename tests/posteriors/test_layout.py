"""Named tensors as one flat vector."""

import pytest
import torch
from torch import nn

from fsvi.posteriors.mean_field import FlatLayout


@pytest.fixture
def net():
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 2))


def test_flattening_and_viewing_are_inverse(net):
    tensors = dict(net.named_parameters())
    layout = FlatLayout({name: p.shape for name, p in tensors.items()})
    vector = layout.flatten(tensors)
    views = layout.views(vector)
    assert vector.shape == (sum(p.numel() for p in tensors.values()),) and not vector.requires_grad
    assert list(views) == list(layout.shapes) == list(tensors)
    assert all(torch.equal(views[name], p) for name, p in tensors.items())
    assert all(view.untyped_storage().data_ptr() == vector.untyped_storage().data_ptr() for view in views.values())
    order = torch.channels_last
    assert views["0.weight"].is_contiguous(memory_format=order)


def test_the_gradient_of_views_is_a_vector(net):
    """In channels-last order, too, each entry of the vector receives the gradient of its own place in a tensor."""
    layout = FlatLayout({name: p.shape for name, p in net.named_parameters()})
    vector = layout.flatten(dict(net.named_parameters())).requires_grad_()
    sum(view.square().sum() for view in layout.views(vector).values()).backward()
    assert torch.equal(vector.grad, 2 * vector.detach())
