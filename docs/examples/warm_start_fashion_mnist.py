"""Three epochs that give a trained FashionMNIST network honest uncertainty.

    fsvi run fashion-mnist map --out results
    python docs/examples/warm_start_fashion_mnist.py results/models/fashion-mnist/map.paper.0.fsvi

The second command takes about three minutes and writes its results to `warm_start.json`.
"""

# %% A network trained the ordinary way
import json
import sys
from pathlib import Path

import fsvi
from fsvi import contexts, metrics, priors
from paper import data

trained = fsvi.load(sys.argv[1])

# %% Its data, and other images, where the network must learn to be unsure
train, elsewhere = data.load("fashion-mnist", "train"), data.load("kmnist", "test")
normalize = data.Normalize.of(train.x)
x, y = normalize(train.x), train.y

# %% The same network with a random last layer, fine-tuned
context = contexts.Mixture([contexts.Batch(), contexts.Dataset(normalize(elsewhere.x))], [0.5, 0.5])
settings = {"prior": priors.Constant(10.0), "num_context": 8, "num_samples": 5, "kl_weight": 1 / 128}
method = fsvi.FSVI.from_trained(trained, context=context, **settings)
history = fsvi.fit(method, (x, y), epochs=3, batch_size=128, lr=5e-4, seed=0)


# %% Before and after, on test images
def measure(model: fsvi.Method) -> dict[str, float]:
    """Accuracy and calibration on the test set, and detection of other images."""
    test = data.load("fashion-mnist", "test")
    inside = model.predict(normalize(test.x), num_samples=10, batch_size=1000)
    found = {"accuracy": metrics.accuracy(inside, test.y), "ece": metrics.ece(inside, test.y)}
    for name in ("mnist", "notmnist"):
        outside = model.predict(normalize(data.load(name, "test").x), num_samples=10, batch_size=1000)
        found[f"auroc_{name}"] = metrics.ood(inside.entropy(), outside.entropy()).auroc
    return {name: round(value, 4) for name, value in found.items()}


found = {"trained": measure(trained), "after three epochs": measure(method)}
for name, figures in found.items():
    print(f"{name:20} " + "  ".join(f"{key} {value:.4f}" for key, value in figures.items()))
Path("warm_start.json").write_text(json.dumps({**found, "seconds": round(history.seconds, 1)}, indent=1) + "\n")
