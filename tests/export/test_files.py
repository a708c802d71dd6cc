import pytest
import torch
from torch import nn

import fsvi


class Odd(nn.Module):
    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return torch.special.bessel_j0(h)


def test_an_operation_that_onnx_does_not_have_is_named(tmp_path):
    method = fsvi.MAP(nn.Sequential(nn.Linear(4, 6), Odd(), nn.Linear(6, 3)), fsvi.Categorical())
    with pytest.raises(fsvi.errors.InvalidInputError, match="uses bessel_j0, which ONNX"):
        method.export(tmp_path / "m.onnx", example=torch.randn(2, 4))
    assert list(tmp_path.iterdir()) == []


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 3)

    def forward(self, mean: torch.Tensor) -> torch.Tensor:
        return self.last(mean)


def test_an_input_with_the_name_of_an_output_is_refused(tmp_path):
    with pytest.raises(fsvi.errors.InvalidInputError, match="both called 'mean'"):
        fsvi.MAP(Named(), fsvi.Categorical()).export(tmp_path / "m.onnx", example={"mean": torch.randn(2, 4)})
