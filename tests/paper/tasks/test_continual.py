import pytest
import torch

import fsvi
from paper.experiment import Order
from paper.report.figures import build_figures
from paper.runs import run
from paper.tasks.continual import CONTINUAL_TASKS, SequenceExperiment
from paper.tasks.registry import TASKS
from paper.tuning import tune
from pictures import Oracle, make_up, needs, pretend

NAMES = [task.name for task in CONTINUAL_TASKS]


def order(task="split-mnist", method="s-fsvi", context="coreset"):
    return Order(task, method, "smoke", context=context)


def check(result, num_tasks):
    accuracies = [result.metrics[f"accuracy_task_{number}"] for number in range(1, num_tasks + 1)]
    assert result.metrics["accuracy"] == pytest.approx(sum(accuracies) / num_tasks)
    each = result.curves["forgetting"]["each"]
    assert [len(row) for row in each] == list(range(1, num_tasks + 1))
    assert each[-1] == pytest.approx(accuracies, abs=1e-5)
    lost = [each[number][number] - each[-1][number] for number in range(num_tasks - 1)]
    assert result.metrics["forgetting"] == pytest.approx(sum(lost) / (num_tasks - 1), abs=1e-4)
    assert result.curves["forgetting"]["first"] == [row[0] for row in each]


@pytest.mark.parametrize(("method", "context"), [("s-fsvi", "coreset"), ("s-fsvi", "no-coreset"), ("map", None)])
def test_a_run_from_made_up_digits_to_the_figure(monkeypatch, tmp_path, method, context):
    pretend(monkeypatch)
    result = run(order(method=method, context=context), tmp_path, progress=False)
    check(result, 5)
    assert [title for title, *_ in build_figures([result])] == ["Forgetting"]
    saved = fsvi.load(tmp_path / "models" / "split-mnist" / f"{result_stem(method, context)}.smoke.0.fsvi")
    if method == "s-fsvi":
        sizes = saved.kept.sizes.tolist()
        assert saved.num_tasks == 5 and sizes == ([10, 10, 10, 10, 8] if context == "coreset" else [0] * 5)


def result_stem(method, context):
    return method if context is None else f"{method}-{context}"


@pytest.mark.data
@needs(("mnist", "train"), ("mnist", "test"))
def test_a_run_on_real_digits(tmp_path):
    check(run(order("permuted-mnist"), tmp_path, progress=False), 10)


@pytest.mark.parametrize("name", NAMES)
def test_the_tasks_of_a_sequence(monkeypatch, name):
    pretend(monkeypatch)
    experiment = TASKS[name].experiment(order(name))
    assert isinstance(experiment, SequenceExperiment)
    if name == "permuted-mnist":
        assert len(experiment.tasks) == 10
        pixels = [x.sort(1).values for x, _ in experiment.tasks]
        assert all(torch.equal(pixels[0], each) for each in pixels)
        assert not torch.equal(experiment.tasks[0][0], experiment.tasks[1][0])
        assert all(torch.equal(y, experiment.tasks[0][1]) for _, y in experiment.tasks)
    else:
        assert [y.unique().tolist() for _, y in experiment.tasks] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    method = experiment.build(0)
    assert isinstance(method.likelihood, fsvi.MultiHead) == (name in ("split-mnist", "split-fashion-mnist"))
    assert experiment.tasks[0][0].min() >= 0 and experiment.tasks[0][0].max() <= 1


def test_test_digits_are_loaded_by_the_evaluation_alone(monkeypatch):
    asked = pretend(monkeypatch)
    experiment = TASKS["split-mnist-single"].experiment(order("split-mnist-single"))
    assert asked == [("mnist", "train")]
    labels = make_up("mnist", "test", 48).y

    class Half(Oracle):
        """Right about the classes below 4, which are two of five tasks."""

        def modules(self):
            return []

    seen = iter([labels[(labels // 2) == task] for task in range(5)])
    answer = lambda x: torch.nn.functional.one_hot(next(seen).clamp_max(3), 10).double() + 1e-9  # noqa: E731
    found = experiment.evaluate(Half(answer))
    assert asked[1:] == [("mnist", "test")]
    assert found.metrics["accuracy"] == pytest.approx(0.4)
    assert "forgetting" not in found.metrics


def test_methods_with_a_context_but_no_coreset_are_refused(monkeypatch):
    pretend(monkeypatch)
    with pytest.raises(fsvi.errors.InvalidInputError, match="coreset"):
        TASKS["split-mnist"].experiment(order(method="fsvi"))


def test_tuning_refuses_sequences_of_tasks(monkeypatch, tmp_path):
    pretend(monkeypatch)
    with pytest.raises(fsvi.errors.InvalidInputError, match="sequence of tasks"):
        tune(order(method="map", context=None), tmp_path, 1)
