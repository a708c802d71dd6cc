"""Training with Accelerate: it chooses the device and moves data, fsvi makes the step."""

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
    method.to(accelerator.device)
    examples = method.check_batch(x, y)
    method.begin(examples[0], len(x))
    method.fit_prior(*examples)
    method.train()
    optimizer, loader = accelerator.prepare(
        torch.optim.Adam(method.parameter_groups(lr)), DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
    )

    def batches():
        """One pass over the data, as the method sees them."""
        return (method.check_batch(*batch) for batch in loader)

    losses = []
    for _ in range(epochs):
        steps = [fsvi.take_step(method, optimizer, *batch) for batch in batches()]
        method.after_epoch(batches)
        losses.append(sum(sum(terms.values()) for terms in steps) / len(steps))
    method.finish(batches)
    return method.eval(), losses


if __name__ == "__main__":
    print(train()[1][-1])
