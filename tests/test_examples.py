"""Training loops of others around a method; each example is a file of the documentation."""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import fsvi
from scenarios import points

EXAMPLES = Path(__file__).parent.parent / "docs" / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(method):
    near = method.predict(torch.tensor([[0.0, 1.0], [1.0, -0.5]]))
    assert near.labels().tolist() == [0, 1]
    assert not method.training


def test_a_loop_written_by_hand():
    method, losses = load("hand_written_loop").train(epochs=15)
    check(method)
    assert losses[-1] < losses[0] - 0.2


def quiet_method():
    """A method without randomness, so that losses can be compared."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(2, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
    method = fsvi.MAP(net, fsvi.Categorical())
    method.num_data = 40
    return method


def losses_of_fit(x, y):
    loader = DataLoader(TensorDataset(x, y), batch_size=16)
    steps = []

    class Record(fsvi.training.Callback):
        def on_step_end(self, state):
            steps.append(sum(state.terms.values()))

    fsvi.fit(quiet_method(), loader, epochs=3, lr=1e-2, schedule=None, callbacks=[Record()])
    return steps


@pytest.mark.filterwarnings("ignore")
def test_accelerate_has_the_losses_of_fit():
    accelerate = pytest.importorskip("accelerate")
    x, y = points(40)
    method, accelerator = quiet_method(), accelerate.Accelerator(cpu=True)
    optimizer = torch.optim.Adam(method.parameter_groups(1e-2))
    model, optimizer, loader = accelerator.prepare(method, optimizer, DataLoader(TensorDataset(x, y), batch_size=16))
    losses = []
    for batch in [batch for _ in range(3) for batch in loader]:
        loss = sum(model(*batch).values())
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        losses.append(float(loss))
    assert losses == pytest.approx(losses_of_fit(x, y), rel=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_lightning_has_the_losses_of_fit(tmp_path, monkeypatch):
    lightning = pytest.importorskip("lightning")
    monkeypatch.chdir(tmp_path)
    x, y = points(40)
    module, losses = load("lightning_loop").Trained(quiet_method()), []
    monkeypatch.setattr(module, "log_dict", lambda terms: losses.append(float(sum(terms.values()))))
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = lightning.Trainer(max_epochs=3, accelerator="cpu", devices=1, logger=False, **quiet)
    trainer.fit(module, DataLoader(TensorDataset(x, y), batch_size=16))
    assert losses == pytest.approx(losses_of_fit(x, y), rel=1e-5)
