"""A pretrained image model meets something else

A network that was trained as usual on digits becomes a method in one line, and learns in a few epochs to doubt pieces
of photographs.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits, load_sample_image
from torch import nn

import fsvi


def patches(name, step):
    """Pieces of a photograph, as large as a digit."""
    photo = torch.tensor(load_sample_image(name), dtype=torch.float32).mean(2)[None, None]
    pieces = nn.functional.avg_pool2d(photo, 4).unfold(2, 8, step).unfold(3, 8, step).reshape(-1, 1, 8, 8)
    low, high = pieces.amin((2, 3), keepdim=True), pieces.amax((2, 3), keepdim=True)
    return (pieces - low) / (high - low + 1e-6) * 2 - 1


digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1
x, y, x_test, y_test = (
    images[:1200],
    torch.tensor(digits.target[:1200]),
    images[1200:],
    torch.tensor(digits.target[1200:]),
)
china, flower = patches("china.jpg", 8), patches("flower.jpg", 8)  # one photograph for the context, the other to test

torch.manual_seed(0)
net = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))
optimizer = torch.optim.Adam(net.parameters())
for _ in range(30):
    for batch in torch.randperm(1200).split(64):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
        optimizer.step()

context = fsvi.contexts.Mixture([fsvi.contexts.Batch(), fsvi.contexts.Dataset(china)], [0.5, 0.5])
method = fsvi.FSVI.from_trained(net, fsvi.Categorical(), context, kl_weight=1e-4)
fsvi.fit(method, (x, y), epochs=10, lr=1e-3, seed=0)

figure, axes = plt.subplots(1, 2, figsize=(8, 3), sharey=True, layout="constrained")
for ax, name, model in zip(
    axes, ("trained as usual", "FSVI.from_trained"), (fsvi.MAP(net, fsvi.Categorical()), method), strict=True
):
    inside, outside = model.predict(x_test), model.predict(flower)
    auroc = fsvi.metrics.ood(inside.entropy(), outside.entropy()).auroc
    accuracy = fsvi.metrics.accuracy(inside, y_test)
    ax.hist([inside.entropy(), outside.entropy()], bins=20, density=True, label=["digits", "photograph"])
    ax.set(title=f"{name}\naccuracy {accuracy:.3f}, AUROC {auroc:.3f}", xlabel="entropy, nats")
axes[0].legend()
figure.savefig("pretrained_images.png", dpi=90)
