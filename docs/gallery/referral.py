"""Referral curve

The least certain patients go to a doctor; the others are right more often. The vertical line is a threshold with a
guarantee.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

import fsvi

data = load_breast_cancer()
columns = data.data[:, :4]  # only four measurements, so that some patients are hard
x_train, x_rest, y_train, y_rest = train_test_split(columns, data.target, test_size=0.7, random_state=0)
x_val, x_test, y_val, y_test = train_test_split(x_rest, y_rest, test_size=0.5, random_state=0)
model = fsvi.FSVIClassifier(random_state=0).fit(x_train, y_train)

referral = fsvi.Referral(model.predictive(x_val), y_val, target_accuracy=0.9, confidence=0.9)
p = model.predictive(x_test)
kept = referral.decide(p).float().mean()
curve = fsvi.metrics.referral_curve(p, torch.as_tensor(y_test), rates=np.linspace(0, 0.8, 30).tolist())

figure, ax = plt.subplots(figsize=(6, 3), layout="constrained")
ax.plot(curve.rate, curve.accuracy, "o-", ms=3)
ax.axvline(1 - kept, ls="--", color="gray", label="threshold: at least 90% right, with confidence 90%")
ax.set(xlabel="share of patients that are referred", ylabel="accuracy of the others")
ax.legend()
figure.savefig("referral.png", dpi=90)
