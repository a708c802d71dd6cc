"""A training loop written by hand: a method is a module that returns the terms of its loss."""

import torch
from sklearn.datasets import make_moons
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fsvi


def train(epochs: int = 20, lr: float = 1e-2) -> tuple[fsvi.Method, list[float]]:
    """A trained method, and the loss of each epoch."""
    torch.manual_seed(0)
    inputs, labels = make_moons(400, noise=0.1, random_state=0)
    x, y = torch.as_tensor(inputs, dtype=torch.float32), torch.as_tensor(labels)
    loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
    net = nn.Sequential(nn.Linear(2, 50), nn.ReLU(), nn.Linear(50, 2))
    method = fsvi.FSVI(net, fsvi.Categorical(), context=fsvi.contexts.Uniform(low=[-3, -3], high=[4, 4]))
    method.num_data = len(x)
    method.begin(*method.check_batch(x, y))
    optimizer = torch.optim.Adam(method.parameter_groups(lr))
    losses = []
    for _ in range(epochs):
        method.train()
        total = 0.0
        for batch in loader:
            loss = sum(method(*batch).values())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss)
        losses.append(total / len(loader))
    return method.eval(), losses


if __name__ == "__main__":
    method, losses = train()
    far = method.predict(torch.tensor([[0.0, 1.0], [30.0, 30.0]]))
    print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}; entropy near {far.entropy()[0]:.3f}, far {far.entropy()[1]:.3f}")
