import pytest
import torch

import fsvi
from fsvi.calibration import APS, Calibrated, TemperatureScaling
from fsvi.serialization import read_tree, write_tree
from scenarios import classifier, dense, points

KIND = "fsvi method"


@pytest.fixture(scope="module")
def calibrated():
    method, (x, y) = classifier(), points(80)
    fsvi.fit(method, (x[:20], y[:20]), epochs=2, batch_size=10, lr=1e-2)
    return Calibrated.fit(method, [TemperatureScaling(), APS(randomized=True)], x[20:], y[20:], num_samples=7, seed=3)


def test_it_is_the_method_and_then_the_calibration(calibrated):
    x, _ = points(80)
    raw = calibrated.method.predict(x, 7, seed=3)
    assert torch.equal(calibrated.predict(x).samples, calibrated.calibration(raw).samples)
    assert torch.equal(calibrated.sets(x, 0.2), calibrated.calibration.sets(raw, 0.2))
    assert calibrated.calibration.scaling.temperature != 1
    assert not torch.equal(calibrated.predict(x).samples, raw.samples)


@pytest.mark.parametrize("net", [None, dense(seed=9)], ids=["alone", "given"])
def test_classes_come_back_from_a_file(calibrated, net, tmp_path):
    calibrated.save(tmp_path / "file")
    loaded = fsvi.load(tmp_path / "file", net)
    x, _ = points()
    assert isinstance(loaded, Calibrated) and type(loaded.method) is type(calibrated.method)
    assert torch.equal(loaded.predict(x).samples, calibrated.predict(x).samples)
    assert torch.equal(loaded.sets(x), calibrated.sets(x))
    assert not loaded.method.training


def forgeries(config):
    yield 3
    yield {}
    yield {**config, "class": "Uniform"}
    yield {**config, "class": "LAC", "settings": {}}
    yield {**config, "settings": {}}
    for name, value in (
        ("calibration", None),
        ("calibration", {"class": "LAC"}),
        ("method", {"class": "LAC", "settings": {}}),
        ("num_samples", 0),
        ("seed", -1),
    ):
        yield {**config, "settings": {**config["settings"], name: value}}
    steps = [{"class": "TemperatureScaling", "settings": {"temperature": -1.0}}]
    calibration = {"class": "Calibration", "settings": {"steps": steps}}
    yield {**config, "settings": {**config["settings"], "calibration": calibration}}


def test_a_forged_calibration_raises_only_errors_of_fsvi(calibrated, tmp_path):
    path = tmp_path / "forged.fsvi"
    calibrated.save(path)
    tree = read_tree(path, KIND)
    for forged in forgeries(tree["config"]):
        write_tree(path, {**tree, "config": forged}, KIND)
        with pytest.raises(fsvi.errors.FSVIError, match=r"forged\.fsvi"):
            fsvi.load(path)
