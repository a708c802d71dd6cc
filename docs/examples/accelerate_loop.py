"""Training with Accelerate, which prepares a method like any other module: devices, processes, mixed precision."""

import torch
from accelerate import Accelerator
from sklearn.datasets import make_moons
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fsvi


def train(epochs: int = 20, lr: float = 1e-2) -> tuple[fsvi.Method, list[float]]:
    """A trained method, and the loss of each epoch."""
    torch.manual_seed(0)
    accelerator = Accelerator()
    inputs, labels = make_moons(400, noise=0.1, random_state=0)
    x, y = torch.as_tensor(inputs, dtype=torch.float32), torch.as_tensor(labels)
    net = nn.Sequential(nn.Linear(2, 50), nn.ReLU(), nn.Linear(50, 2))
    method = fsvi.FSVI(net, fsvi.Categorical(), context=fsvi.contexts.Uniform(low=[-3, -3], high=[4, 4]))
    method.num_data = len(x)
    method.begin(*method.check_batch(x, y))
    model, optimizer, loader = accelerator.prepare(
        method,
        torch.optim.Adam(method.parameter_groups(lr)),
        DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True),
    )
    losses = []
    for _ in range(epochs):
        model.train()
        total = 0.0
        for batch in loader:
            loss = sum(model(*batch).values())
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            total += float(loss)
        losses.append(total / len(loader))
    return accelerator.unwrap_model(model).eval(), losses


if __name__ == "__main__":
    print(train()[1][-1])
