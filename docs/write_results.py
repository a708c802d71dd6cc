"""Write docs/results.md and its figure from the files in paper/results: `python docs/write_results.py`.

All numbers come from the files. A test checks that the page is up to date.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev

from paper.columns import Column, calibration_error, negative_log_likelihood, percent
from paper.methods import dataset_name, method_title
from paper.records import Result
from paper.report import collect
from paper.report.tables import PUBLISHED, compare_like_with_like, published
from paper.tasks.registry import TASKS

DOCS = Path(__file__).resolve().parent


def common(task: str) -> tuple[Column, Column, Column]:
    """Accuracy, likelihood and calibration."""
    return percent(task, "accuracy", "Accuracy"), negative_log_likelihood(task), calibration_error(task)


def detection(task: str, dataset: str) -> Column:
    """How well images of another dataset are told from those of the task."""
    return percent(task, f"auroc_{dataset}", f"AUROC {dataset_name(dataset)}", 1)


UCI = ("boston", "concrete", "energy", "wine", "yacht", "protein")
POSTHOC_TEXT = (
    "Trained networks whose features stay fixed; test images turned by random angles; bold is the best mean among our "
    "rows. FSVI with a fixed mean keeps the network's accuracy. Under rotation its likelihood is better than that of "
    "every other row, and so is its calibration, but for SNGP's at ±30°, which is far too unsure on the test images. "
    "On these a temperature is about as good as FSVI, and VaLLA, FMGP, MFVI and ELLA, as published, have a better "
    "likelihood. Its training takes two seconds on one core, after a pass of the network over 33,000 images. Its "
    "context is corrupted and deformed training images, none of them rotated; its design followed looks at test images "
    "of both networks, rotated ones too. Published: means of five seeds from the files of FMGP's authors, for the same "
    "networks and other random angles."
)
POSTHOC_TEXTS = {
    "posthoc-resnet20": "The text below the next table is about both networks.",
    "posthoc-resnet56": POSTHOC_TEXT,
}
PARTS: list[tuple[str, str, str, Sequence[Column], str]] = [
    (
        "FashionMNIST",
        "fashion-mnist",
        "paper",
        [*common("fashion-mnist"), *(detection("fashion-mnist", name) for name in ("mnist", "notmnist"))],
        "The paper's protocol. With KMNIST as context, FSVI has seen unlabeled images that the others have not; "
        "with monochrome images it has not.",
    ),
    (
        "CIFAR-10",
        "cifar10",
        "desk",
        [
            percent("cifar10", "accuracy", "Accuracy"),
            percent("cifar10", "accuracy_corrupted", "Accuracy, corrupted"),
            *common("cifar10")[1:],
            detection("cifar10", "svhn"),
        ],
        "A compact network. FSVI with corrupted images as context detects SVHN best, and pays with accuracy.",
    ),
    (
        "Rotated MNIST",
        "rotated-mnist",
        "paper",
        [
            *common("rotated-mnist"),
            percent("rotated-mnist", "accuracy_45plus", "Accuracy, ≥ 45°", 1),
            Column("rotated-mnist", "nll_45plus", "NLL, ≥ 45°", "lower"),
        ],
        "On upright digits FSVI is not sure enough, unless a fixed mean follows; on rotated ones its doubt is right.",
    ),
    (
        "Diabetic retinopathy",
        "retina",
        "desk",
        [
            percent("retina", "accuracy", "Accuracy"),
            percent("retina", "auroc", "AUROC", 1),
            *common("retina")[1:],
            percent("retina", "accuracy_referred_50", "Accuracy, half referred", 1),
        ],
        "A compact network. The methods are within two standard errors of each other in most columns.",
    ),
    (
        "Film reviews",
        "reviews",
        "paper",
        [
            *common("reviews"),
            percent("reviews", "accuracy_shifted", "Accuracy, shifted", 1),
            Column("reviews", "nll_shifted", "NLL, shifted", "lower"),
        ],
        "IMDB, and Rotten Tomatoes as the shift. MC dropout and the ensemble are strong here.",
    ),
    *(
        (TASKS[task].section.title, task, "paper", TASKS[task].section.tables[0].columns, text)
        for task, text in POSTHOC_TEXTS.items()
    ),
    (
        "A pretrained backbone",
        "pretrained",
        "paper",
        TASKS["pretrained"].section.tables[0].columns,
        "Heads for CIFAR-10 on features of EfficientNet-Lite0, 10,000 training images. Energy, Mahalanobis distance "
        "and nearest neighbors are scores next to MAP's predictions; the other rows detect by predictive entropy. "
        "Nearest neighbors detect far better than every head, random features included.",
    ),
]
CONTINUAL = {
    "split-mnist": "Split MNIST",
    "split-fashion-mnist": "Split FashionMNIST",
    "permuted-mnist": "Permuted MNIST",
    "split-mnist-single": "Split MNIST, one head",
}
INTRODUCTION = """# Results

## Like with like

One network against one network, then an ensemble of three against an ensemble of three. Means over seeds ± standard
errors, and the number of seeds in parentheses; without ±, one seed. **Bold**: the best mean of each group, which with
one seed may be luck. The contexts of FSVI: {contexts}.

{first}

"FSVI, fixed mean" keeps the function of MAP and learns its variance; "FSVI, then fixed mean" (`fsvi-refined`) does the
same after FSVI has trained the whole network.

**Where FSVI wins.** Inputs like its context: on FashionMNIST and CIFAR-10 it detects other images best, if related
images or corrupted ones are its context. A fixed mean after it removes most of its doubt on the data of rotated MNIST
and film reviews, and nearly all of the detection stays. Around MAP, a fixed mean keeps the accuracy, and its
likelihood and calibration on the data are far better than the network's on FashionMNIST, rotated MNIST and film
reviews. For trained CIFAR-10 networks it is far better than a temperature under rotation, and about as good on the
data. Three FSVI networks have a better likelihood and calibration than three MAP networks on FashionMNIST and film
reviews. S-FSVI remembers earlier tasks.

**Where it loses.** An ensemble of three MAP networks is more accurate than one FSVI network nearly everywhere, and on
retina it is ahead of three FSVI networks. Trained as a whole, FSVI is not sure enough on the data: its NLL is above
MC dropout's on all five tasks of this table, and above MAP's on CIFAR-10, rotated MNIST and retina. It costs accuracy
on CIFAR-10 and retina. A fixed mean, around FSVI or MAP, is no remedy on CIFAR-10, where MAP is calibrated already,
gains nothing over MAP on retina, and after FSVI it costs calibration on FashionMNIST. Around MAP it detects other
images worse than FSVI. On features of a pretrained backbone the distance to the nearest neighbors detects other
images, too, without any training. On UCI's tables FSVI is level with the other methods.

Every number comes from the files in `paper/results`, published ones from `paper/published.json`.
`python docs/write_results.py` writes this page, and `python -m paper report paper/results` a longer one with the
paper's numbers next to ours. How settings were chosen, and which test sets were looked at, is in `paper/NOTEBOOK.md`.

![Accuracy and detection on FashionMNIST](images/results.png)

In the tables below, ensembles stand last, and **bold** is the best mean among single networks, or among ensembles.
"""
DEVIATIONS = """## What differs from the paper

- Other optimizers and learning rates than the paper's SGD at .005, some in bf16; result files have the settings.
- notMNIST is 10,000 images sampled from notMNIST-small.
- Half of FSVI's context points on images are from the minibatch.
- CIFAR-10 and retina use a compact network; methods other than MAP start from MAP's. Retina has 1,200 photographs.
- A fixed mean is given its variance on inputs that the network was not trained on: random parts of training images, or
  held-out film reviews, which the other methods do not have.
- Most methods have one seed on images, not ten.
- Film reviews and continual learning are not in the paper.
"""


def title(result: Result) -> str:
    """A method's name, with its context if it has one."""
    name = method_title(result.method)
    return f"{name} ({result.context})" if result.context else name


def table(runs: dict[str, list[Result]], columns: Sequence[Column]) -> str:
    """One row per method, ensembles last; the best mean of a column is bold, for each of these groups."""
    rows = [
        "| Method | " + " | ".join(column.heading for column in columns) + " | Seeds |",
        "|---|" + "--:|" * (len(columns) + 1),
    ]
    for is_ensemble in (False, True):
        group = {name: found for name, found in runs.items() if ("ensemble" in name) == is_ensemble}
        values = {name: [measured(column, found) for column in columns] for name, found in group.items()}
        best = []
        for i, column in enumerate(columns):
            means = [round(fmean(cells[i]), column.decimals) for cells in values.values() if cells[i]]
            choose = max if column.better == "higher" else min
            best.append(choose(means) if means and not (is_ensemble and len(means) < 2) else None)
        for name, cells in values.items():
            shown = [cell(each, column, top) for each, column, top in zip(cells, columns, best, strict=True)]
            rows.append(f"| {name} | " + " | ".join(shown) + f" | {len(group[name])} |")
    return "\n".join(rows)


def published_rows(task: str, columns: Sequence[Column]) -> str:
    """The rows that others published for the same networks."""
    rows = []
    for label in PUBLISHED[task]["rows"]:
        values = [published(task, label, column.name) for column in columns]
        cells = [
            f"{value[0]:.{column.decimals}f}" if value else "–" for value, column in zip(values, columns, strict=True)
        ]
        rows.append(f"| {method_title(label)}, published | " + " | ".join(cells) + " | 5 |")
    return "\n".join(rows)


def measured(column: Column, results: list[Result]) -> list[float]:
    """The measure of every seed that has it."""
    return [value for result in results if (value := column.value(result)) is not None]


def cell(values: list[float], column: Column, best: float | None) -> str:
    """Mean ± standard error."""
    if not values:
        return "–"
    text = f"{fmean(values):.{column.decimals}f}"
    text = f"**{text}**" if round(fmean(values), column.decimals) == best else text
    return text + (f" ± {stdev(values) / sqrt(len(values)):.{column.decimals}f}" if len(values) > 1 else "")


def grouped(results: list[Result], task: str, profile: str) -> dict[str, list[Result]]:
    """The results of a task by method."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        if (result.task, result.profile) == (task, profile):
            groups.setdefault(title(result), []).append(result)
    return groups


def joined(results: list[Result], tasks: dict[str, str], column: Column) -> str:
    """Several tasks as the columns of one table."""
    runs: dict[str, dict[str, list[float]]] = {}
    for task in tasks:
        for name, found in grouped(results, task, "paper").items():
            runs.setdefault(name, {})[task] = measured(column, found)
    best = {
        task: max(round(fmean(each[task]), column.decimals) for each in runs.values() if task in each) for task in tasks
    }
    rows = ["| Method | " + " | ".join(tasks.values()) + " |", "|---|" + "--:|" * len(tasks)]
    for name, each in runs.items():
        cells = [cell(each.get(task, []), column, best[task]) for task in tasks]
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def all_results() -> list[Result]:
    """Every result in paper/results."""
    return list(collect(DOCS.parent / "paper" / "results")[0].values())


def results_page() -> str:
    """The page as it follows from the results."""
    results = all_results()
    first = compare_like_with_like(results)
    assert first is not None
    parts = [INTRODUCTION.format(contexts="; ".join(first.notes), first=first.markdown())]
    for name, task, profile, columns, text in PARTS:
        rows = table(grouped(results, task, profile), columns)
        if task in POSTHOC_TEXTS:
            rows += "\n" + published_rows(task, columns)
        parts.append(f"## {name}\n\n{rows}\n\n{text}\n")
    uci = {f"uci-{name}": name.capitalize() for name in UCI}
    parts.append(
        "## UCI regression\n\nTest log-likelihood ↑, ten random splits.\n\n"
        + joined(results, uci, Column("", "log_likelihood", "", "higher", 2))
        + "\n"
    )
    parts.append(
        "## Continual learning\n\nMean accuracy over all tasks after the last one ↑, three seeds.\n\n"
        + joined(results, CONTINUAL, percent("", "accuracy", "", 1))
        + "\n"
    )
    return "\n".join([*parts, DEVIATIONS])


def draw() -> None:
    """Accuracy and detection of every method on FashionMNIST."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
    places = {
        name: [fmean(100 * r.metrics[metric] for r in found) for metric in ("accuracy", "auroc_mnist")]
        for name, found in grouped(all_results(), "fashion-mnist", "paper").items()
    }
    below = float("inf")  # names on the right, from the top down, so that none covers another
    for name, place in sorted(places.items(), key=lambda item: -item[1][1]):
        color = "tab:orange" if name.startswith("FSVI") else "tab:blue"
        ax.scatter(*place, color=color, s=25)
        below = min(place[1], below - 2.0)
        ax.annotate(
            name,
            place,
            xytext=(1.02, below),
            textcoords=("axes fraction", "data"),
            va="center",
            fontsize=9,
            arrowprops={"arrowstyle": "-", "color": color, "lw": 0.5, "alpha": 0.6},
        )
    ax.set(xlabel="accuracy on FashionMNIST, %", ylabel="AUROC, MNIST against FashionMNIST, %")
    figure.savefig(DOCS / "images" / "results.png", dpi=100)


if __name__ == "__main__":
    (DOCS / "results.md").write_text(results_page(), "utf-8")
    draw()
