"""What a context looks like

Points of four contexts for the same data: a box, a wider box, shifted rows, and a mixture with the data themselves.
"""

import matplotlib.pyplot as plt

import fsvi
from fsvi.functions.contexts import Batch, Mixture, ShiftedRows, Uniform

x, y = fsvi.data.two_moons(200, noise=0.1, seed=0)
contexts = {
    "Uniform()": Uniform(),
    "Uniform(widen=1.0)": Uniform(widen=1.0),
    "ShiftedRows()": ShiftedRows(),
    "Batch and Uniform": Mixture([Batch(), Uniform(widen=1.0)], [0.5, 0.5]),
}
figure, axes = plt.subplots(1, 4, figsize=(11, 2.8), sharex=True, sharey=True, layout="constrained")
for ax, (name, context) in zip(axes, contexts.items(), strict=True):
    method = fsvi.FSVI(fsvi.networks.mlp(2, (20,), 2), fsvi.Categorical(), context)
    fsvi.fit(method, (x, y), epochs=1, seed=0)  # shows the data to the context
    points = method.context.sample(200, x)
    ax.scatter(*x.T, s=4, label="data")
    ax.scatter(*points.T, s=6, marker="x", label="context")
    ax.set(title=name, xlim=(-6, 7), ylim=(-6, 6))
axes[0].legend()
figure.savefig("contexts.png", dpi=90)
