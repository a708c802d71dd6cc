"""Conformal sets

Sets of classes that contain the right one for 90% of digits like those held out. Most digits get one class. Most
blurred ones get none: no class looks right, so a person should look, and the guarantee does not cover them.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import fsvi
from fsvi.calibration import LAC, Calibration

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1
order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
x, y = images[order], torch.tensor(digits.target)[order]
torch.manual_seed(0)
net = nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
blurred = nn.functional.avg_pool2d(images, 3, 1, 1)
context = fsvi.contexts.Mixture([fsvi.contexts.Batch(), fsvi.contexts.Dataset(blurred[:300])], [0.5, 0.5])
method = fsvi.FSVI(net, fsvi.Categorical(), context, stochastic="last_layer", kl_weight=1e-4)
fsvi.fit(method, (x[:700], y[:700]), epochs=30, lr=3e-3, seed=0)

calibration = Calibration([LAC()]).fit(method.predict(x[700:1200]), y[700:1200])
new, targets = x[1200:], y[1200:]
figure, ax = plt.subplots(figsize=(6, 3), layout="constrained")
for name, inputs in {"digits": new, "blurred": nn.functional.avg_pool2d(new, 3, 1, 1)}.items():
    members = calibration.sets(method.predict(inputs), alpha=0.1)
    covered = members[range(len(targets)), targets].float().mean()
    sizes = torch.bincount(members.sum(1), minlength=11)[:11] / len(targets)
    ax.bar(torch.arange(11) + (0.2 if name == "digits" else -0.2), sizes, 0.4, label=f"{name}: {covered:.0%} covered")
ax.set(xlabel="classes in the set", ylabel="share of images")
ax.legend()
figure.savefig("conformal_sets.png", dpi=90)
