import pytest
import torch
from torch import nn

import fsvi

HEADS = [[0, 1], [2, 3]]


def task(number, num=24):
    x = torch.randn(num, 2, generator=torch.Generator().manual_seed(number))
    return x, 2 * number + (x[:, 0] > 0).long()


def make(kind=fsvi.SFSVI, likelihood=None, seed=0):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 4))
    context = [] if kind is fsvi.MAP else [fsvi.contexts.Uniform(-1.0, 1.0)]
    settings = {"coreset": 4, "num_context": 4} if kind is fsvi.SFSVI else {}
    return kind(net, likelihood or fsvi.MultiHead(HEADS), *context, **settings)


TASKS = [task(0), task(1)]
SETTINGS = {"epochs": 4, "batch_size": 12}


def test_each_task_is_one_fit():
    method, by_hand = make(fsvi.MAP), make(fsvi.MAP)
    histories = fsvi.fit_tasks(method, TASKS, seed=3, **SETTINGS)
    for number, data in enumerate(TASKS):
        by_hand.likelihood.task = number
        fsvi.fit(by_hand, data, seed=3, **SETTINGS)
    assert [history.epochs for history in histories] == [4, 4]
    assert all(torch.equal(a, b) for a, b in zip(method.parameters(), by_hand.parameters(), strict=True))


def test_every_member_of_an_ensemble_remembers():
    seeds = iter([0, 1])
    ensemble = fsvi.Ensemble(lambda: make(seed=next(seeds)), size=2)
    fsvi.fit_tasks(ensemble, TASKS, epochs=1)
    assert [(member.num_tasks, member.likelihood.task) for member in ensemble.members] == [(2, 1), (2, 1)]


@pytest.mark.parametrize("stop", [0, 1])
@pytest.mark.parametrize("kind", [fsvi.SFSVI, fsvi.MAP])
def test_an_interrupted_sequence_continues_with_the_same_bits(kind, stop, tmp_path):
    """Interrupted in the third epoch of a task, after a checkpoint of the second."""
    whole = make(kind)
    fsvi.fit_tasks(whole, TASKS, **SETTINGS)

    def interrupt(state):
        present = state.method.likelihood.task
        if present == stop and state.epoch == 3 and not resumed:
            raise KeyboardInterrupt

    resumed = False
    settings = {**SETTINGS, "checkpoint": tmp_path, "callbacks": [interrupt]}
    with pytest.raises(KeyboardInterrupt):
        fsvi.fit_tasks(make(kind), TASKS, **settings)
    resumed, seen, method = True, [], make(kind)
    fsvi.fit_tasks(method, TASKS, resume=True, after_task=lambda _, number: seen.append(number), **settings)
    assert seen == [0, 1]
    ours, theirs = method.state_dict(), whole.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
