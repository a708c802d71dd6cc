"""A table that leaves its data

Patients of the diabetes table are moved away from the training rows, step by step. The intervals of FSVI widen on the
way.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.ensemble import RandomForestRegressor
from sklearn.model_selection import train_test_split

import fsvi

x, y = load_diabetes(return_X_y=True)
x_train, x_test, y_train, y_test = train_test_split(x, y, random_state=0)
model = fsvi.FSVIRegressor(random_state=0).fit(x_train, y_train)
forest = RandomForestRegressor(random_state=0).fit(x_train, y_train)

direction = np.random.default_rng(0).choice([-1, 1], x.shape[1]) * x_train.std(0)
steps = np.linspace(0, 8, 9)
ours = [model.predict(x_test + step * direction, return_std=True)[1].mean() for step in steps]
trees = [np.std([tree.predict(x_test + step * direction) for tree in forest], axis=0).mean() for step in steps]

figure, ax = plt.subplots(figsize=(6, 3), layout="constrained")
ax.plot(steps, ours, "o-", label="FSVIRegressor: standard deviation")
ax.plot(steps, trees, "s--", label="forest: standard deviation over trees")
ax.set(
    xlabel="distance from the training rows, in standard deviations",
    ylabel="uncertainty",
    ylim=(0, None),
)
ax.legend()
figure.savefig("table_leaves_data.png", dpi=90)
