import pytest
import torch

from fsvi.inputs import bundle
from fsvi.networks.heads import Positions
from fsvi.validation import as_tensor

VALUES = torch.arange(24.0).reshape(3, 4, 2)


@pytest.mark.parametrize("num", [1, 5, 12])
def test_chosen_positions_are_different_and_everywhere(num):
    torch.manual_seed(0)
    seen = [Positions(torch.zeros(3, 4), torch.rand(num)).select(VALUES)[:, 0] for _ in range(200)]
    assert all(len(set(each.tolist())) == num for each in seen)
    assert set(torch.cat(seen).tolist()) == set(VALUES[..., 0].flatten().tolist())


def test_the_same_positions_are_selected_from_all_values():
    points = Positions(torch.zeros(3, 4), torch.rand(6))
    assert torch.equal(points.select(VALUES) + 1, points.select(VALUES + 1))
    assert len(points) == 6


def test_padding_is_never_chosen():
    mask = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1]])
    x = bundle({"input_ids": torch.zeros(3, 4, dtype=torch.long), "attention_mask": mask}, as_tensor)
    torch.manual_seed(0)
    seen = torch.cat([Positions(x, torch.rand(4)).select(VALUES)[:, 0] for _ in range(100)])
    assert set(seen.tolist()) == set(VALUES[..., 0][mask == 1].tolist())
