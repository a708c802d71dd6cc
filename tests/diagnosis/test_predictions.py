import pytest
import torch
from torch import nn

import fsvi
from fsvi.diagnosis import diagnose
from fsvi.diagnosis.evidence import Evidence
from fsvi.diagnosis.predictions import check_calibration
from moons import MOONS, faults


def test_one_prediction_sample(healthy: tuple[fsvi.FSVI, fsvi.History]) -> None:
    diagnosis = diagnose(healthy[0], MOONS, num_samples=1)
    assert faults(diagnosis) == {"samples"}
    assert "num_samples=10" in diagnosis["samples"].advice


def noisy_labels(num: int = 400) -> tuple[torch.Tensor, torch.Tensor]:
    """p(y = 1) is 0.2 or 0.8, by the sign of x."""
    x = torch.randn(num, 1)
    return x, (torch.rand(num) < 0.5 + 0.3 * x[:, 0].sign()).long()


@pytest.mark.parametrize(
    ("slope", "severity", "kind"), [(50.0, "fault", "overconfident"), (0.1, "fault", "underconfident")]
)
def test_calibration_tells_the_direction(slope: float, severity: str, kind: str) -> None:
    net = nn.Sequential(nn.Linear(1, 1), nn.Hardtanh(), nn.Linear(1, 2))
    with torch.no_grad():
        net[0].weight.fill_(1e3)
        net[0].bias.zero_()
        net[2].weight.copy_(torch.tensor([[-slope], [slope]]))
        net[2].bias.zero_()
    method = fsvi.MAP(net, fsvi.Categorical())
    finding = check_calibration(Evidence.gather(method, noisy_labels(), None, None, 10))
    assert (finding.severity, kind in finding.sentence) == (severity, True)


def test_calibration_forgives_what_chance_explains() -> None:
    net = nn.Linear(1, 2)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[0.0], [1.0]]))
        net.bias.zero_()
    method = fsvi.MAP(nn.Sequential(net), fsvi.Categorical())
    for _ in range(20):
        x = torch.randn(60, 1)
        y = (torch.rand(60) < x[:, 0].sigmoid()).long()
        assert check_calibration(Evidence.gather(method, (x, y), None, None, 10)).severity != "fault"


def test_the_monte_carlo_error_falls_with_the_root_of_the_draws(healthy: tuple[fsvi.FSVI, fsvi.History]) -> None:
    errors = [diagnose(healthy[0], MOONS, num_samples=num)["samples"].values["error"] for num in (4, 64)]
    assert 2.5 < errors[0] / errors[1] < 6.5
