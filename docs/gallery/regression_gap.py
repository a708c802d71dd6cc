"""Regression with a gap

Mean, and one, two and three standard deviations of the function: it is unsure in the gap between the data, and
outside of them.
"""

import matplotlib.pyplot as plt
import torch

import fsvi

x_raw, y_raw = fsvi.data.snelson()
x, y = ((values - values.mean()) / values.std() for values in (x_raw, y_raw))
inside, around = fsvi.contexts.Uniform(), fsvi.contexts.Uniform(widen=1.0)  # the range of the data, and three times it
torch.manual_seed(0)
method = fsvi.FSVI(
    fsvi.networks.mlp(1, (100, 100), 1, torch.nn.ReLU),
    fsvi.Gaussian(noise=0.5, learn_noise=True),
    fsvi.contexts.Mixture([inside, around], [0.5, 0.5]),
    prior=fsvi.priors.Constant(10.0),
    num_context=20,
    kl_weight=0.015,
    stds=fsvi.posteriors.Stds(lr_scale=10.0),
)
fsvi.fit(method, (x, y), epochs=1200, batch_size=len(x), lr=1e-2, seed=0)

line = torch.linspace(-4, 10, 300)[:, None]
functions = method.predict((line - x_raw.mean()) / x_raw.std(), num_samples=200).samples.squeeze(2)
mean, deviation = functions.mean(0), functions.std(0)
figure, ax = plt.subplots(figsize=(6, 3), layout="constrained")
for width in (3, 2, 1):
    ax.fill_between(line[:, 0], mean - width * deviation, mean + width * deviation, color="tab:blue", alpha=0.2, lw=0)
ax.plot(line, mean, color="tab:blue")
ax.scatter(x_raw, y, s=6, color="black")
ax.set(xlim=(-4, 10), ylim=(-6, 6), xlabel="x", ylabel="y, standardized")
figure.savefig("regression_gap.png", dpi=90)
