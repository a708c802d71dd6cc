"""The method of CONTRIBUTING: it trains, predicts, is saved and exported, and runs under torchrun."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fsvi

FILE = Path(__file__).parent.parent / "docs" / "examples" / "new_method.py"
_spec = importlib.util.spec_from_file_location("new_method", FILE)
module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(module)


@pytest.mark.filterwarnings("ignore")
def test_a_method_of_sixty_lines_has_everything(tmp_path):
    assert len(FILE.read_text().splitlines()) <= 60
    x, y = fsvi.data.two_moons(100, noise=0.1, seed=0)
    torch.manual_seed(0)
    method = module.WeightNoise(fsvi.networks.mlp(2, (20,), 2), fsvi.Categorical())
    fsvi.fit(method, (x, y), epochs=40, lr=3e-2, seed=0)
    p = method.predict(x, num_samples=20)
    assert fsvi.metrics.accuracy(p, y) > 0.8
    assert p.samples.std(0).max() > 0
    method.save(tmp_path / "mine.fsvi")
    loaded = module.WeightNoise.load(tmp_path / "mine.fsvi")
    assert torch.equal(loaded.predict(x, num_samples=20).mean, p.mean)
    method.export(tmp_path / "mine.pt2", num_samples=8)
    assert (tmp_path / "mine.pt2").stat().st_size > 1000


@pytest.mark.gallery
def test_it_trains_under_torchrun():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(FILE)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-1500:]
    assert done.stdout.count("accuracy") == 2
