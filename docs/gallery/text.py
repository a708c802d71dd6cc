"""Text

A small transformer learns praise and blame. Texts that say neither are uncertain, because the context has texts with
replaced words.
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

torch.manual_seed(0)
net = fsvi.networks.text_encoder(len(vocabulary), num_classes=2, width=16, length=x["input_ids"].shape[1])
context = fsvi.contexts.Mixture([fsvi.contexts.Batch(), fsvi.contexts.ReplacedTokens(0.5)], [0.5, 0.5])
method = fsvi.FSVI(net, fsvi.Categorical(), context, stochastic="last_layer", num_samples=5, num_context=8)
fsvi.fit(method, (train, y[:400]), epochs=12, batch_size=32, lr=5e-3, seed=0)

silent = vocabulary.encode([" ".join(rng.choices(FILLERS, k=19)) for _ in range(200)])
inside, outside = method.predict(test, num_samples=100), method.predict(silent, num_samples=100)
accuracy = fsvi.metrics.accuracy(inside, y[400:])
auroc = fsvi.metrics.ood(inside.entropy(), outside.entropy()).auroc
figure, ax = plt.subplots(figsize=(6, 3), layout="constrained")
ax.hist([inside.entropy(), outside.entropy()], bins=20, label=["reviews", "texts without a verdict"])
ax.set(xlabel="entropy, nats", ylabel="texts", title=f"accuracy {accuracy:.2f}, AUROC {auroc:.2f}")
ax.legend()
figure.savefig("text.png", dpi=90)
