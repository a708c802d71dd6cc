"""Reliability diagram

How often the predicted class is right, by the probability that the model gives it: an ordinary network and FSVI.
"""

import matplotlib.pyplot as plt
import torch

import fsvi

x, y = fsvi.data.two_moons(100, noise=0.4, seed=0)
x_test, y_test = fsvi.data.two_moons(2000, noise=0.4, seed=1)
box = fsvi.contexts.Uniform(low=[-4, -4], high=[4, 4])
figure, ax = plt.subplots(figsize=(5, 3.4), layout="constrained")
for name in ("MAP", "FSVI"):
    torch.manual_seed(0)
    net = fsvi.networks.mlp(2, (50, 50), 2)
    method = fsvi.MAP(net, fsvi.Categorical()) if name == "MAP" else fsvi.FSVI(net, fsvi.Categorical(), box)
    fsvi.fit(method, (x, y), epochs=200, seed=0)
    p = method.predict(x_test)
    confidence, right = p.mean.max(1).values, (p.labels() == y_test).float()
    bins = ((confidence - 0.5) * 10).long().clamp(0, 4)
    used = [b for b in range(5) if (bins == b).sum() > 20]
    ax.plot(
        [confidence[bins == b].mean() for b in used],
        [right[bins == b].mean() for b in used],
        "o-",
        label=f"{name}: ECE {fsvi.metrics.ece(p, y_test):.3f}",
    )
ax.plot([0.5, 1], [0.5, 1], "--", color="gray")
ax.set(xlabel="probability of the predicted class", ylabel="how often it is right")
ax.legend()
figure.savefig("reliability.png", dpi=90)
