"""What is chosen for which inputs, and one line from a trained network of each kind to predictions."""

import pytest
import torch
from torch import nn

import fsvi
from fsvi import contexts
from fsvi.functions.contexts.shifted_rows import ShiftedRows


class Words(nn.Module):
    """The mean of embeddings, and a linear layer."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 6), nn.Linear(6, 2)

    def forward(self, ids):
        return self.head(self.embedding(ids).mean(1))


def kinds():
    torch.manual_seed(0)
    images = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2))
    rows = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    sequences = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    return {
        "images": (images, torch.randn(40, 1, 8, 8), contexts.Mixture),
        "rows": (rows, torch.randn(40, 3), ShiftedRows),
        "texts": (Words(), torch.randint(20, (40, 5)), contexts.ReplacedTokens),
        "sequences": (sequences, torch.randn(40, 4, 3), contexts.Uniform),
    }


@pytest.mark.parametrize("kind", kinds())
def test_a_trained_network_needs_no_context_of_the_user(kind, tmp_path):
    net, x, chosen = kinds()[kind]
    method = fsvi.FSVI.from_trained(net, fsvi.Categorical(), freeze=True)
    y = torch.arange(40) % 2
    fsvi.fit(method, (x, y), epochs=2, progress=False)
    assert type(method.context._chosen) is chosen
    assert method.context.sample(7, x).shape == (7, *x.shape[1:])
    assert fsvi.diagnose(method, (x, y)).findings
    method.save(tmp_path / "method.fsvi")
    again = fsvi.load(tmp_path / "method.fsvi", net)
    torch.testing.assert_close(again.predict(x).mean, method.predict(x).mean)
    fsvi.fit(again, (x, y), epochs=1, progress=False)


def test_points_can_be_drawn_before_training():
    assert contexts.Suitable().sample(3, torch.randn(10, 2)).shape == (3, 2)
