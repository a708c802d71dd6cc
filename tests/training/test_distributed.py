"""Training on two processes, over loopback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fsvi
from fsvi.training.distributed import mixed_seed
from fsvi_cases import MODES
from scenarios import points, same_bits
from training.ranks import EXACT, TOGETHER, plain

HERE = Path(__file__).parent
TRAIN = """
import os, signal, sys
import torch
import fsvi
from scenarios import build, copied

def die(state):
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if first and os.environ["RANK"] == "1" and state.epoch == 7:
        os.kill(os.getpid(), signal.SIGKILL)

class Ends(fsvi.Callback):
    every_process = True
    on_epoch_end = staticmethod(die)

torch.set_num_threads(1)
method, data = build("jvp")
fsvi.fit(method, data, epochs=12, batch_size=4, checkpoint=sys.argv[1], checkpoint_interval=0.0, callbacks=[Ends()])
torch.save(copied(method), f"{sys.argv[1]}/{os.environ['RANK']}.pt")
"""


def in_a_process(*arguments):
    path = os.pathsep.join([str(HERE.parent), str(Path(fsvi.__file__).parents[1])])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, timeout=300, env=environment
    )


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """The results of all cases in `ranks.py`."""
    folder = tmp_path_factory.mktemp("ranks")
    done = in_a_process(HERE / "ranks.py", folder)
    assert done.returncode == 0, done.stderr
    return folder


def results(folder):
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in (0, 1)]


# Steps ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_two_unequal_parts_have_the_gradient_of_the_whole_batch(out, mode):
    for gradient_error, term_error in results(out / f"gradients_{mode}"):
        assert gradient_error < 1e-6
        assert term_error < 1e-6


@pytest.mark.parametrize("name", TOGETHER)
def test_all_processes_end_with_the_same_state(out, name):
    first, second = results(out / f"train_{name}")
    assert same_bits(first["state"], second["state"])
    assert first["loss"] == second["loss"]
    assert first["num_data"] == second["num_data"] == 20


@pytest.mark.parametrize("name", EXACT)
def test_two_times_ten_examples_train_like_twenty(out, name):
    for together, alone in results(out / f"exact_{name}"):
        for key, value in alone.items():
            torch.testing.assert_close(together[key], value, rtol=1e-4, atol=1e-5, msg=key)


def test_the_initial_network_is_that_of_the_first_process(out):
    first, second = results(out / "other_start")
    assert same_bits(first, second)


def test_accumulation_clipping_and_precision_work_together_with_it(out):
    first, second = results(out / "options")
    assert same_bits(first["state"], second["state"])


# Data -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dataset", "shuffle", "generator", "sampler"])
def test_processes_see_every_example_once_per_epoch(out, kind):
    first, second = results(out / f"loader_{kind}")
    for one, other in zip(first["seen"], second["seen"], strict=True):
        assert sorted(one + other) == list(range(23))
        assert abs(len(one) - len(other)) <= 1
    assert first["seen"][0] != first["seen"][1]
    assert first["num_data"] == 23
    assert same_bits(first["state"], second["state"])


@pytest.mark.parametrize("kind", ["shuffle", "plain"])
def test_processes_share_the_batches_of_a_stream(out, kind):
    first, second = results(out / f"stream_{kind}")
    for one, other in zip(first["seen"], second["seen"], strict=True):
        assert sorted(one + other) == list(range(23))
        assert abs(len(one) - len(other)) <= 1
    assert (first["seen"][0] != first["seen"][1]) == (kind == "shuffle")
    assert first["num_data"] == 23
    assert same_bits(first["state"], second["state"])


def test_a_stream_on_two_processes_trains_like_on_one(out):
    for together, alone in results(out / "exact_stream"):
        for key, value in alone.items():
            torch.testing.assert_close(together[key], value, rtol=1e-4, atol=1e-5, msg=key)


def test_a_stream_may_shard_itself(out):
    first, second = results(out / "stream_own")
    assert [sorted(epoch) for epoch in first["seen"]] == [list(range(0, 23, 2))] * 2
    assert [sorted(epoch) for epoch in second["seen"]] == [list(range(1, 23, 2))] * 2
    assert same_bits(first["state"], second["state"])


@pytest.mark.parametrize(
    ("case", "keyword"),
    [
        ("stream_different", "different examples"),
        ("stream_shorter", "different examples"),
        ("refused_laplace", "Laplace"),
        ("refused_validation", "validation"),
    ],
)
def test_streams_that_cannot_be_shared_are_refused(out, case, keyword):
    found = results(out / case)
    assert [each["error"] for each in found] == ["InvalidInputError"] * 2
    assert all(keyword in each["text"] for each in found)
    assert sum(not each["told"] for each in found) == 1


def test_validation_is_that_of_one_process(out):
    first, second = results(out / "validated")
    assert first["validation"] == pytest.approx(first["alone"], abs=1e-6)
    assert first["validation"] == second["validation"]
    assert len(first["validation"]) == first["best"] + 2  # patience
    assert same_bits(first["state"], second["state"])


def test_batch_norm_averages_the_statistics_of_all_processes(out):
    (start, first, left), (_, second, also_left) = results(out / "statistics")
    torch.testing.assert_close(left, 0.9 * start + 0.1 * (first + second) / 2)
    assert torch.equal(left, also_left)
    assert not torch.equal(first, second)


# Who speaks -----------------------------------------------------------------------------------------------------------


def test_the_first_process_calls_callbacks_and_stops_all(out):
    first, second = results(out / "stopped")
    assert first == ([1, 2], 2)
    assert second == ([], 2)


@pytest.mark.parametrize(
    ("kind", "keyword"),
    [("data", "data"), ("settings", "lr"), ("few", "shared"), ("bad", "epochs")],
)
def test_one_process_tells_what_is_wrong_on_all(out, kind, keyword):
    found = results(out / f"wrong_{kind}")
    assert [each["error"] for each in found] == ["InvalidInputError"] * 2
    assert all(keyword in each["text"] for each in found)
    assert sum(not each["told"] for each in found) == 1


def test_an_error_on_one_process_stops_the_other_which_says_nothing(out):
    first, second = results(out / "wrong_one_bad")
    assert (second["error"], second["told"]) == ("InvalidInputError", False)
    assert (first["error"], first["told"]) == ("ProcessLostError", True)


@pytest.mark.parametrize(("value", "keyword"), [(True, "torchrun"), ("yes", "distributed")])
def test_distributed_needs_processes(value, keyword):
    with pytest.raises(fsvi.InvalidInputError, match=keyword):
        fsvi.fit(fsvi.MAP(plain(), fsvi.Categorical()), points(), epochs=1, distributed=value)


def test_processes_of_different_seeds_draw_different_numbers():
    assert len({mixed_seed(seed, "noise", rank) for seed in range(5) for rank in range(5)}) == 25


# Processes that die ---------------------------------------------------------------------------------------------------


def test_after_a_kill_the_other_process_stops_and_the_result_is_the_same(out):
    assert all(seconds < 60 for seconds in torch.load(out / "waited.pt"))
    for whole, killed in zip(results(out / "whole"), results(out / "killed"), strict=True):
        assert same_bits(whole, killed)


def test_another_number_of_processes_continues(out):
    alone = torch.load(out / "continued_1" / "0.pt", weights_only=False)
    assert len(alone["loss"]) == 12
    first, second = results(out / "continued_2")
    assert len(first["loss"]) == 12
    assert same_bits(first, second)


def test_torchrun_restarts_from_the_checkpoint(out, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1")
    done = in_a_process(*torchrun, script, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    for state, whole in zip(results(tmp_path / "out"), results(out / "whole"), strict=True):
        assert same_bits(state, whole["state"])
