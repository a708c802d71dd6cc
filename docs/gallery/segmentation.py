"""Segmentation with an uncertainty map

Each pixel is disc or background. In the last picture a square appears, which the network has never seen: its pixels
are uncertain.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import fsvi

rows, columns = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")


def scene(square=False):
    """A noisy image of a disc, and the label of each pixel."""
    center, radius = torch.rand(2) * 16 + 8, torch.rand(1) * 4 + 3
    disc = (rows - center[0]) ** 2 + (columns - center[1]) ** 2 < radius**2
    image = disc + 0.3 * torch.randn(32, 32)
    if square:
        image[2:10, 22:30] = -3.0
    return image[None], disc.long()


torch.manual_seed(0)
images, labels = map(torch.stack, zip(*(scene() for _ in range(100)), strict=True))
net = nn.Sequential(
    nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 2, 1)
)
strange = fsvi.contexts.Dataset(torch.randn(50, 1, 1, 1) * 4 + 0.3 * torch.randn(50, 1, 32, 32))  # one color and noise
context = fsvi.contexts.Mixture([fsvi.contexts.Batch(), strange], [0.5, 0.5])
method = fsvi.FSVI(net, fsvi.Categorical(), context, stochastic="last_layer", kl_weight=1e-4, num_context=64)
fsvi.fit(method, (images, labels), epochs=30, batch_size=20, lr=5e-3, seed=0)

figure, axes = plt.subplots(2, 3, figsize=(7, 4.6), layout="constrained")
for row, square in zip(axes, (False, True), strict=True):
    image, _ = scene(square)
    p = method.predict(image[None], num_samples=50)
    maps = {"image": image[0], "probability of disc": p.mean[..., 1], "entropy": p.entropy()}
    for ax, (name, values) in zip(row, maps.items(), strict=True):
        limits = {"vmin": 0, "vmax": 0.7} if name == "entropy" else {}
        ax.imshow(values.reshape(32, 32), **limits)
        ax.set(title=name, xticks=[], yticks=[])
figure.savefig("segmentation.png", dpi=90)
