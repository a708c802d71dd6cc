"""Training with Lightning, around a method like around any other module."""

import lightning
import torch
from sklearn.datasets import make_moons
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fsvi


class Trained(lightning.LightningModule):
    """A method and its optimizer."""

    def __init__(self, method: fsvi.Method, lr: float = 1e-2) -> None:
        super().__init__()
        self.method, self.lr = method, lr

    def configure_optimizers(self):
        """The optimizer of the method's parameters."""
        return torch.optim.Adam(self.method.parameter_groups(self.lr))

    def training_step(self, batch, _):
        """The loss is the sum of the method's terms."""
        terms = self.method(*batch)
        self.log_dict(terms)
        return sum(terms.values())


def train(epochs: int = 20) -> tuple[fsvi.Method, dict[str, float]]:
    """A trained method, and the terms of the last step."""
    torch.manual_seed(0)
    inputs, labels = make_moons(400, noise=0.1, random_state=0)
    x, y = torch.as_tensor(inputs, dtype=torch.float32), torch.as_tensor(labels)
    net = nn.Sequential(nn.Linear(2, 50), nn.ReLU(), nn.Linear(50, 2))
    method = fsvi.FSVI(net, fsvi.Categorical(), context=fsvi.contexts.Uniform(low=[-3, -3], high=[4, 4]))
    method.num_data = len(x)
    method.begin(*method.check_batch(x, y))
    loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = lightning.Trainer(max_epochs=epochs, accelerator="auto", devices=1, logger=False, **quiet)
    trainer.fit(Trained(method), loader)
    return method.eval(), {name: float(value) for name, value in trainer.callback_metrics.items()}


if __name__ == "__main__":
    print(train()[1])
