"""A method on one network: its parts, and the network after training."""

import torch

import fsvi
import scenarios


def test_the_parts_of_a_method_hold_what_it_shares():
    method = scenarios.classifier()
    assert list(method.parts) == ["function_space", "weights"]
    method.context = fsvi.contexts.Batch()
    method.num_context = 3
    x, _ = scenarios.points()
    assert method.function_space.points(x).shape == (3, 2)
    assert method.posterior is method.weights.posterior and method.prior is method.function_space.prior


def test_means_are_left_in_the_network_after_training_and_after_loading(tmp_path):
    method = scenarios.classifier()
    fsvi.fit(method, scenarios.points(), epochs=2, progress=False)
    method.save(tmp_path / "method.fsvi")
    for each in (method, fsvi.load(tmp_path / "method.fsvi")):
        means = each.posterior.means()
        assert all(torch.equal(means[name], p) for name, p in each.net.named_parameters())
