import pytest
import torch
import torch.nn.functional as F
from torch import nn

from paper.whitened_cnn import whitened_cnn, whitening_filters


def photographs(num=40, size=32, seed=0):
    """Smooth images whose channels are correlated, as those of photographs are."""
    generator = torch.Generator().manual_seed(seed)
    noise = F.avg_pool2d(torch.randn(num, 3, size + 4, size + 4, generator=generator), 5, stride=1)
    mixed = torch.einsum("dc,nchw->ndhw", torch.tensor([[1.0, 0.5, 0.4], [0.5, 1.0, 0.6], [0.3, 0.7, 1.0]]), noise)
    return 30 * mixed


def test_responses_of_the_filters_are_uncorrelated_and_of_equal_power():
    """Each patch is cut out by slicing, without the convolution and the unfolding of the code."""
    x = photographs()
    filters = whitening_filters(x)
    assert filters.shape == (24, 3, 2, 2) and torch.equal(filters[:12], -filters[12:])
    corners = [(row, column) for row in (0, 1) for column in (0, 1)]
    parts = [x[:, :, row : 31 + row, column : 31 + column] for row, column in corners]
    responses = sum(
        torch.einsum("kc,nchw->knhw", filters[:12, :, row, column].double(), part.double())
        for (row, column), part in zip(corners, parts, strict=True)
    ).flatten(1)
    moments = responses @ responses.T / responses.shape[1]
    torch.testing.assert_close(moments, torch.eye(12, dtype=torch.float64), atol=0.02, rtol=0)


def test_it_is_the_published_network():
    net, x = whitened_cnn(photographs()), photographs(2)
    work = []
    hooks = [
        m.register_forward_hook(lambda m, _, out: work.append(out[0].numel() * m.weight[0].numel()))
        for m in net.modules()
        if isinstance(m, (nn.Conv2d, nn.Linear))
    ]
    assert net(x).shape == (2, 10)
    for hook in hooks:
        hook.remove()
    assert 2 * sum(work) / 1e6 == pytest.approx(236, abs=1)
    assert [m.out_channels for m in net.modules() if isinstance(m, nn.Conv2d)] == [24, 64, 64, 256, 256, 256, 256]
    assert sum(isinstance(m, nn.BatchNorm2d) for m in net.modules()) == 6
