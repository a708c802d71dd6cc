import torch

import fsvi
from fsvi.diagnosis.evidence import Evidence, distances
from moons import MOONS, moons_method


def test_distances_to_the_nearest() -> None:
    data = torch.tensor([[0.0], [1.0], [4.0]])
    assert distances(torch.tensor([[0.5], [10.0], [4.0]]), data).tolist() == [0.5, 6.0, 0.0]
    assert distances(data, data, own=True).tolist() == [1.0, 1.0, 3.0]


def test_large_data_are_thinned_evenly() -> None:
    x = torch.linspace(0, 1, 5001)[:, None].expand(-1, 2).contiguous()
    seen = Evidence.gather(moons_method(), (x, (x[:, 0] > 0.5).long()), None, None, 10)
    assert len(seen.x) == 1000 and len(seen.few) == 128
    assert seen.x[0, 0] == 0 and seen.x[-1, 0] == 1


def test_the_best_constant_is_the_entropy_of_the_class_frequencies() -> None:
    seen = Evidence.gather(fsvi.MAP(moons_method().net, fsvi.Categorical()), MOONS, None, None, 10)
    shares = torch.bincount(MOONS[1]) / len(MOONS[1])
    torch.testing.assert_close(torch.tensor(seen.constant_nll), -(shares * shares.log()).sum())


def test_the_best_constant_of_real_targets_is_a_gaussian() -> None:
    x, y = MOONS[0], MOONS[0][:, :1].sin()
    method = fsvi.MAP(torch.nn.Linear(2, 1), fsvi.Gaussian())
    gaussian = torch.distributions.Normal(y.mean(), y.std(correction=0))
    seen = Evidence.gather(method, (x, y), None, None, 10)
    torch.testing.assert_close(torch.tensor(seen.constant_nll), -gaussian.log_prob(y).mean())


def test_inputs_are_pushed_away_from_their_mean() -> None:
    seen = Evidence.gather(moons_method(), MOONS, None, None, 10)
    center = seen.few.mean(0)
    lengths = (seen.pushed - center).norm(dim=1).reshape(2, -1) / (seen.few - center).norm(dim=1)
    torch.testing.assert_close(lengths, torch.tensor([[2.0], [3.0]]).expand_as(lengths))
