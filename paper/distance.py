"""Does the variance grow away from the data? `python -m paper.distance` writes studies/distance.json and a table.

Three small tasks, each with a gap: Snelson's curve without its middle, two moons, and a ring with a hole. The heads:
a linear layer on a small network, random Fourier features of that network's features, and random Fourier features of
the inputs themselves, whose length scale is the median distance or a quarter of it. The latter was added after a first
table had shown that the gaps are narrow for the median. FSVI, Laplace and VBLL train all four; SNGP has its own head.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import fsvi
from fsvi.data import two_moons
from fsvi.networks import RandomFeatures
from paper.data.toys import snelson

FILE = Path(__file__).parent / "studies" / "distance.json"
WIDTH, NUM_FEATURES, SAMPLES, STEPS = 50, 256, 500, 400
SHORT = "distance of inputs, quarter length"
HEADS = ("linear", "distance of features", "distance of inputs", SHORT)


class Case(NamedTuple):
    """Training data, and inputs in the gap and far away."""

    x: Tensor
    y: Tensor
    gap: Tensor
    far: Tensor


def snelson_case(seed: int) -> Case:
    """The gap is 2 ≤ x ≤ 2.5, far is 4 to 6 standard deviations from the mean."""
    toy = snelson()
    far = torch.linspace(4, 6, 21)[:, None]
    return Case(toy.x, toy.y, toy.features(torch.linspace(2, 2.5, 11)[:, None]), torch.cat([-far, far]))


def moons_case(seed: int) -> Case:
    """The gap is inside of the bounding box at least .6 from every point, far is at 10 to 12 from the center."""
    x, y = two_moons(300, 0.1, seed)
    low, high = x.amin(0), x.amax(0)
    inside = low + (high - low) * torch.rand(4000, 2)
    return Case(x, y, inside[torch.cdist(inside, x).amin(1) > 0.6], x.mean(0) + circle(200, 10, 12))


def ring_case(seed: int) -> Case:
    """A ring of radius 2, whose classes are left and right. The gap is within .5 of its center, far is at 10 to 12."""
    x = circle(300, 1.8, 2.2)
    return Case(x, (x[:, 0] > 0).long(), circle(200, 0, 0.5), circle(200, 10, 12))


def circle(num: int, low: float, high: float) -> Tensor:
    """Random points with a radius between `low` and `high`."""
    angle, radius = 2 * torch.pi * torch.rand(num), low + (high - low) * torch.rand(num)
    return radius[:, None] * torch.stack([angle.cos(), angle.sin()], 1)


CASES: dict[str, Callable[[int], Case]] = {"snelson": snelson_case, "two-moons": moons_case, "ring": ring_case}


def network(head: str, x: Tensor, outputs: int) -> nn.Sequential:
    """A network whose head is linear, or linear on random features; their length scale is from the data."""
    layers: list[nn.Module] = []
    if not head.startswith("distance of inputs"):
        layers = [nn.Linear(x.shape[1], WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    width = WIDTH if layers else x.shape[1]
    if head != "linear":
        features = RandomFeatures(width, NUM_FEATURES)
        with torch.no_grad():
            seen = nn.Sequential(*layers)(x)
        features.see(seen)
        if head == SHORT:
            features = RandomFeatures(width, NUM_FEATURES, float(features.scale) / 4)
            features.see(seen)
        layers.append(features)
        width = NUM_FEATURES
    return nn.Sequential(*layers, nn.Linear(width, outputs))


def make(name: str, net: nn.Module, likelihood: Any) -> fsvi.Method:
    """A method with its defaults, except for FSVI's context, a box five times as wide as the data, and its prior."""
    if name != "fsvi":
        return fsvi.make_method(name, net, likelihood)
    return fsvi.FSVI(net, likelihood, fsvi.contexts.Uniform(widen=2.0), prior=fsvi.priors.Constant(1.0))


def measure(task: str, name: str, head: str, seed: int) -> dict[str, Any]:
    """The mean standard deviation of the function on the data, in the gap and far away; for classes, the mean
    probability of the predicted class, too.
    """
    torch.manual_seed(seed)
    case = CASES[task](seed)
    is_numeric = case.y.is_floating_point()
    likelihood = fsvi.Gaussian(noise=0.5, learn_noise=True) if is_numeric else fsvi.Categorical()
    method = make(name, network("linear" if name == "sngp" else head, case.x, 1 if is_numeric else 2), likelihood)
    fsvi.fit(method, (case.x, case.y), epochs=STEPS, batch_size=len(case.x), lr=1e-2, seed=seed, progress=False)
    found: dict[str, Any] = {"task": task, "method": name, "head": head, "seed": seed}
    for place, x in (("data", case.x), ("gap", case.gap), ("far", case.far)):
        with torch.no_grad():
            draws = method.functions(SAMPLES, torch.Generator().manual_seed(0))(x)
        values = draws[..., 0] if is_numeric else draws[..., 1] - draws[..., 0]
        found[f"std_{place}"] = float(values.std(0).mean())
        if not is_numeric:
            found[f"confidence_{place}"] = float(draws.softmax(-1).mean(0).amax(1).mean())
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: standard deviations in the gap and far away as multiples of those on the data; means over seeds."""
    lines = ["| task | method | head | std on data | gap / data | far / data | confidence data, gap, far |"]
    lines.append("|---|---|---|---|---|---|---|")
    for key in dict.fromkeys((row["task"], row["method"], row["head"]) for row in rows):
        own = [row for row in rows if (row["task"], row["method"], row["head"]) == key]
        ratios = [f"{mean(row[f'std_{place}'] / row['std_data'] for row in own):.1f}" for place in ("gap", "far")]
        certain = ", ".join(
            f"{mean(row[f'confidence_{place}'] for row in own):.2f}"
            for place in ("data", "gap", "far")
            if "confidence_far" in own[0]
        )
        on_data = f"{mean(row['std_data'] for row in own):.2f}"
        lines.append(f"| {' | '.join([*key, on_data, *ratios, certain or '–'])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    chosen = [(name, head) for name in ("fsvi", "laplace", "vbll") for head in HEADS] + [("sngp", "its own")]
    rows = [measure(task, name, head, seed) for task in CASES for name, head in chosen for seed in range(3)]
    FILE.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(rows))
