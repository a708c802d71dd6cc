import pytest

from fsvi.diagnosis import diagnose
from moons import MOONS, faults, moons_method, trained


def test_untrained() -> None:
    assert faults(diagnose(moons_method(), MOONS)) == {"learning"}


@pytest.mark.parametrize("with_history", [True, False])
def test_kl_weight_a_thousand_times_too_large(with_history: bool) -> None:
    method = moons_method(kl_weight=1000 / len(MOONS[0]))
    history = trained(method)
    diagnosis = diagnose(method, MOONS, history=history if with_history else None)
    assert faults(diagnosis) == {"kl_balance"}
    assert "Lower kl_weight" in diagnosis["kl_balance"].advice
    assert diagnosis["kl_balance"].values["weight"] == pytest.approx(1000)
