"""Training on two processes, over loopback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fsvi
from fsvi.training import checkpoints
from fsvi_cases import MODES
from scenarios import same_bits
from training.ranks import EXACT, TOGETHER, around_trained, continued, exact, gradients, uneven

HERE = Path(__file__).parent
DIE = """
import os, signal, sys
import torch
import fsvi
from scenarios import build, copied

class Ends(fsvi.training.Callback):
    every_process = True

    def on_epoch_end(self, state):
        first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if first and os.environ["RANK"] == "1" and state.epoch == 7:
            os.kill(os.getpid(), signal.SIGKILL)

torch.set_num_threads(1)
fsvi.training.checkpoints.INTERVAL = 0.0
method, data = build("jvp")
fsvi.fit(method, data, epochs=12, batch_size=4, checkpoint=sys.argv[1], callbacks=[Ends()])
torch.save(copied(method), f"{sys.argv[1]}/{os.environ['RANK']}.pt")
"""


def torchrun(*arguments, restarts=0):
    path = os.pathsep.join([str(HERE.parent), str(Path(fsvi.__file__).parents[1])])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", f"--max-restarts={restarts}"]
    command = [sys.executable, "-m", *command, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """The results of all cases in `ranks.py`, on each of two processes, and the folder that they worked in."""
    folder = tmp_path_factory.mktemp("ranks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "INTERVAL", 0.0)
        continued(folder / "one")
    torchrun(HERE / "ranks.py", folder)
    results = [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in (0, 1)]
    return {name: [each[name] for each in results] for name in results[0]} | {"folder": folder}


# Steps ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_unequal_parts_on_two_processes_have_the_gradient_of_the_whole(out, mode):
    terms, wanted = gradients(mode)
    for found_terms, found in out[f"gradients_{mode}"]:
        assert found_terms == pytest.approx(terms, abs=1e-6)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", TOGETHER)
def test_all_processes_end_with_the_same_state(out, name):
    first, second = out[f"train_{name}"]
    assert same_bits(first["state"], second["state"])
    assert first["loss"] == second["loss"]
    assert first["num_data"] == second["num_data"] == 20


@pytest.mark.parametrize("name", EXACT)
def test_two_times_ten_examples_train_like_twenty(out, name):
    alone = exact(name)
    for together in out[f"exact_{name}"]:
        for key, value in alone.items():
            torch.testing.assert_close(together[key], value, rtol=1e-4, atol=1e-5, msg=key)


def test_a_process_without_data_in_a_step_does_not_count(out):
    alone = uneven()
    for together in out["uneven"]:
        for key, value in alone.items():
            torch.testing.assert_close(together[key], value, rtol=1e-4, atol=1e-5, msg=key)


@pytest.mark.parametrize("name", ["other_start", "options"])
def test_all_start_like_the_first_process_and_stay_together(out, name):
    assert same_bits(*out[name])


def test_a_posterior_around_a_trained_network_counts_the_data_once(out):
    precision, mean = around_trained()
    for found_precision, found in out["around_trained"]:
        assert found_precision == precision
        torch.testing.assert_close(found, mean)


# Data -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case", ["loader_dataset", "loader_shuffle", "loader_generator", "loader_sampler", "stream_shuffle", "stream_plain"]
)
def test_processes_see_every_example_once_per_epoch(out, case):
    first, second = out[case]
    for one, other in zip(first["seen"], second["seen"], strict=True):
        assert sorted(one + other) == list(range(24))
        assert len(one) == len(other)
    assert (first["seen"][0] != first["seen"][1]) == (case != "stream_plain")
    assert first["num_data"] == 24
    assert same_bits(first["state"], second["state"])


@pytest.mark.parametrize(
    ("case", "keyword"),
    [
        ("stream_different", "order of its data"),
        ("wrong_data", "data"),
        ("wrong_settings", "lr=0.2, but process 0 has 0.1"),
        ("wrong_few", "start fewer processes"),
    ],
)
def test_what_processes_cannot_share_is_refused_by_name(out, case, keyword):
    for found in out[case]:
        assert found["error"] == "InvalidInputError"
        assert keyword in found["text"]


def test_validation_is_that_of_one_process(out):
    first, second = out["validated"]
    assert first["validation"] == pytest.approx(first["alone"], abs=1e-6)
    assert first["validation"] == second["validation"]
    assert len(first["validation"]) == first["best"] + 2  # patience
    assert same_bits(first["state"], second["state"])


def test_batch_norm_averages_the_statistics_of_all_processes(out):
    (start, first, left), (_, second, also_left) = out["statistics"]
    torch.testing.assert_close(left, 0.9 * start + 0.1 * (first + second) / 2)
    assert torch.equal(left, also_left)
    assert not torch.equal(first, second)


def test_the_first_process_calls_callbacks_and_stops_all(out):
    assert out["stopped"] == [([1, 2], 2), ([], 2)]


# Processes that die ---------------------------------------------------------------------------------------------------


def test_another_number_of_processes_continues(out):
    first, second = out["continued_by_two"]
    assert len(first["loss"]) == 12
    assert same_bits(first, second)
    assert len(continued(out["folder"] / "two", resume=True)["loss"]) == 12


def test_after_a_kill_the_other_process_ends_and_a_restart_continues(out, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(DIE)
    torchrun(script, tmp_path / "out", restarts=1)
    for rank, whole in enumerate(out["whole"]):
        assert same_bits(torch.load(tmp_path / "out" / f"{rank}.pt"), whole["state"])
