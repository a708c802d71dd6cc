import pytest
import torch

import fsvi
from paper.experiment import Order
from paper.tasks.continual import CONTINUAL_TASKS, SequenceExperiment
from paper.tasks.registry import TASKS
from paper.tuning import tune
from pictures import Oracle, make_up, pretend

NAMES = [task.name for task in CONTINUAL_TASKS]


def order(task="split-mnist", method="s-fsvi", context="coreset"):
    return Order(task, method, "smoke", context=context)


@pytest.mark.parametrize(("context", "sizes"), [("coreset", [10, 10, 10, 10, 8]), ("no-coreset", [0] * 5)])
def test_forgetting_is_the_accuracy_lost_since_a_task_was_learned(monkeypatch, context, sizes):
    pretend(monkeypatch)
    experiment = TASKS["split-mnist"].experiment(order(context=context))
    method = experiment.build(0)
    experiment.train(method, 0, progress=False)
    assert method.num_tasks == 5 and method.sizes.tolist() == sizes
    outcome = experiment.evaluate(method)
    accuracies = [outcome.metrics[f"accuracy_task_{number}"] for number in range(1, 6)]
    assert outcome.metrics["accuracy"] == pytest.approx(sum(accuracies) / 5)
    each = outcome.curves["forgetting"]["each"]
    assert [len(row) for row in each] == [1, 2, 3, 4, 5] and each[-1] == pytest.approx(accuracies, abs=1e-5)
    lost = [each[number][number] - each[-1][number] for number in range(4)]
    assert outcome.metrics["forgetting"] == pytest.approx(sum(lost) / 4, abs=1e-4)
    assert outcome.curves["forgetting"]["first"] == [row[0] for row in each]


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


def test_other_contexts_and_tuning_are_refused(monkeypatch, tmp_path):
    pretend(monkeypatch)
    with pytest.raises(fsvi.errors.InvalidInputError, match="coreset"):
        TASKS["split-mnist"].experiment(order(method="fsvi"))
    with pytest.raises(fsvi.errors.InvalidInputError, match="sequence of tasks"):
        tune(order(method="map", context=None), tmp_path, 1)
