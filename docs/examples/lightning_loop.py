"""Training with Lightning: it moves data and makes checkpoints, fsvi makes the step."""

import lightning
import torch
from sklearn.datasets import make_moons
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fsvi


class Trained(lightning.LightningModule):
    """A method in Lightning's manual optimization."""

    def __init__(self, method: fsvi.Method, x: torch.Tensor, y: torch.Tensor, lr: float = 1e-2) -> None:
        super().__init__()
        self.method, self.data, self.lr = method, (x, y), lr
        self.automatic_optimization = False

    def batches(self):
        """One pass over the data, as the method sees them."""
        return (self.method.check_batch(*batch) for batch in self.train_dataloader())

    def train_dataloader(self):
        """The training data."""
        return DataLoader(TensorDataset(*self.data), batch_size=64, shuffle=True)

    def configure_optimizers(self):
        """Begin, and make the optimizer."""
        x, y = self.method.check_batch(*self.data)
        self.method.begin(x, len(x))
        self.method.fit_prior(x, y)
        return torch.optim.Adam(self.method.parameter_groups(self.lr))

    def training_step(self, batch, _):
        """The step of fsvi."""
        terms = fsvi.take_step(self.method, self.optimizers(), *self.method.check_batch(*batch))
        self.log_dict(terms)

    def on_train_epoch_end(self):
        """Some methods do something after each epoch."""
        self.method.after_epoch(self.batches)

    def on_train_end(self):
        """The parameters have their final values."""
        self.method.finish(self.batches)


def train(epochs: int = 20) -> tuple[fsvi.Method, dict[str, float]]:
    """A trained method, and the terms of the last step."""
    torch.manual_seed(0)
    inputs, labels = make_moons(400, noise=0.1, random_state=0)
    x, y = torch.as_tensor(inputs, dtype=torch.float32), torch.as_tensor(labels)
    net = nn.Sequential(nn.Linear(2, 50), nn.ReLU(), nn.Linear(50, 2))
    method = fsvi.FSVI(net, fsvi.Categorical(), context=fsvi.contexts.Uniform(low=[-3, -3], high=[4, 4]))
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = lightning.Trainer(max_epochs=epochs, accelerator="auto", devices=1, logger=False, **quiet)
    trainer.fit(Trained(method, x, y))
    return method.eval(), {name: float(value) for name, value in trainer.callback_metrics.items()}


if __name__ == "__main__":
    print(train()[1])
