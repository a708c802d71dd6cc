"""Text

A small transformer learns praise and blame. How well it notices texts that say neither depends on the context: reviews
with replaced words, or unlabeled texts like those.
"""

import random

import matplotlib.pyplot as plt
import torch

import fsvi

PRAISE = ["great", "superb", "moving", "clever", "funny"]
BLAME = ["awful", "boring", "clumsy", "silly", "flat"]
FILLERS = ["the", "film", "plot", "actor", "scene", "and", "with", "of", "music", "camera", "ending", "story", "hero"]
rng = random.Random(0)


def write(label):
    """A review with three words of its label, and one of the other."""
    own, other = (PRAISE, BLAME) if label else (BLAME, PRAISE)
    words = rng.choices(FILLERS, k=15) + rng.choices(own, k=3) + rng.choices(other, k=1)
    return " ".join(rng.sample(words, len(words)))


y = torch.arange(600) % 2
texts = [write(label) for label in y.tolist()]
vocabulary = fsvi.data.Vocabulary.of(texts)
x = vocabulary.encode(texts)
train, test = ({name: ids[part] for name, ids in x.items()} for part in (slice(400), slice(400, None)))


def neutral():
    """Texts that say neither good nor bad."""
    return vocabulary.encode([" ".join(rng.choices(FILLERS, k=19)) for _ in range(200)])


contexts = {"replaced words": fsvi.contexts.ReplacedTokens(0.5), "unlabeled texts": fsvi.contexts.Dataset(neutral())}
others = neutral()
figure, axes = plt.subplots(1, 2, figsize=(8, 3), sharey=True, layout="constrained")
for ax, (name, points) in zip(axes, contexts.items(), strict=True):
    torch.manual_seed(0)
    net = fsvi.networks.TextEncoder(len(vocabulary), num_classes=2, width=16, length=x["input_ids"].shape[1])
    context = fsvi.contexts.Mixture([fsvi.contexts.Batch(), points], [0.5, 0.5])
    method = fsvi.FSVI(net, fsvi.Categorical(), context, num_samples=5, num_context=8)
    fsvi.fit(method, (train, y[:400]), epochs=12, batch_size=32, lr=5e-3, seed=0)
    inside, outside = method.predict(test, num_samples=100), method.predict(others, num_samples=100)
    auroc = fsvi.metrics.ood(inside.entropy(), outside.entropy()).auroc
    ax.hist([inside.entropy(), outside.entropy()], bins=20, label=["reviews", "texts without a verdict"])
    accuracy = fsvi.metrics.accuracy(inside, y[400:])
    ax.set(title=f"context: {name}\naccuracy {accuracy:.2f}, AUROC {auroc:.2f}", xlabel="entropy, nats")
axes[0].legend()
figure.savefig("text.png", dpi=90)
