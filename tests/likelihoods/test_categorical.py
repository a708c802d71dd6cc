import pytest
import torch
from torch import distributions as D

import fsvi
from fsvi.errors import InvalidInputError
from fsvi.likelihoods import weighted
from likelihood_cases import N, Q, expected_curvature


@pytest.fixture(params=[(), (4,)], ids=["one", "draws"])
def f(request):
    """Outputs (n, Q), or (draws, n, Q)."""
    return torch.randn(*request.param, N, Q, dtype=torch.float64)


@pytest.mark.parametrize("ignore_index", [None, -1])
@pytest.mark.parametrize("soft", [False, True])
def test_the_loss_is_the_cross_entropy(f, ignore_index, soft):
    """−Σ_c q_c log p_c with the log-probabilities of torch.distributions, divided by the number of examples."""
    labels = torch.arange(N) % Q
    one_hot = torch.nn.functional.one_hot(labels, Q).double()
    targets = torch.rand(N, Q, dtype=torch.float64).softmax(-1) if soft else one_hot
    log_p = torch.stack([D.Categorical(logits=f).log_prob(torch.tensor(c)) for c in range(Q)], dim=-1)
    expected = -(targets * log_p).sum(-1).mean()
    torch.testing.assert_close(fsvi.Categorical(ignore_index).nll(f, targets if soft else labels), expected)


def test_weights_and_smoothing_of_classes_are_weights_and_probabilities_of_examples(f):
    """They give PyTorch's loss with a weight per class and with label smoothing, divided by the number of examples."""
    labels, weight = torch.arange(N) % Q, torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)
    flat, targets = f.flatten(0, -2), labels.expand(f.shape[:-1]).flatten()
    likelihood = fsvi.Categorical()
    with weighted(likelihood, weight[labels]):
        ours = likelihood.nll(f, labels)
    cross_entropy = torch.nn.functional.cross_entropy
    torch.testing.assert_close(ours, cross_entropy(flat, targets, weight, reduction="none").mean())
    smooth = 0.8 * torch.nn.functional.one_hot(labels, Q).double() + 0.2 / Q
    torch.testing.assert_close(likelihood.nll(f, smooth), cross_entropy(flat, targets, label_smoothing=0.2))


def test_soft_targets_of_a_single_class_are_labels(f):
    labels = torch.arange(N) % Q
    soft = torch.nn.functional.one_hot(labels, Q).double()
    likelihood = fsvi.Categorical()
    torch.testing.assert_close(likelihood.nll(f, likelihood.check_targets(soft, Q)), likelihood.nll(f, labels))


def test_ignored_examples_are_as_if_they_were_not_there(f):
    labels = torch.tensor([0, -100, 2, 1, -100])
    keep = labels >= 0
    likelihood = fsvi.Categorical(ignore_index=-100)
    checked = likelihood.check_targets(labels, Q)
    torch.testing.assert_close(likelihood.nll(f, checked), fsvi.Categorical().nll(f[..., keep, :], labels[keep]))
    assert likelihood.num_observed(checked) == 3
    p = likelihood.predictive(f.reshape(-1, N, Q))
    assert torch.equal(p.log_prob(labels) == 0, ~keep)
    torch.testing.assert_close(p.log_prob(labels)[keep], p[keep].log_prob(labels[keep]))


def test_the_curvature_is_that_of_the_loss():
    """An example's curvature is the Hessian of its loss, whatever its target; without a target there is none."""
    f, labels, likelihood = torch.randn(N, Q, dtype=torch.float64), torch.arange(N) % Q, fsvi.Categorical(-1)
    labels[0] = -1
    with_targets, without = likelihood.fisher_root(f, labels), likelihood.fisher_root(f)
    assert not with_targets[0].any() and torch.equal(with_targets[1:], without[1:])
    for i in range(N):
        mean = expected_curvature(likelihood, f[i], torch.arange(Q), f[i].softmax(-1))
        torch.testing.assert_close((without @ without.mT)[i], mean)
        torch.testing.assert_close(expected_curvature(likelihood, f[i], labels[i : i + 1].clamp_min(0), [1.0]), mean)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: fsvi.Categorical(ignore_index=0.5), "ignore_index=0.5"),
        (lambda: fsvi.Categorical(ignore_index=-1).check_targets(torch.tensor([-2, 0]), Q), "-2"),
        (lambda: fsvi.Categorical().check_targets(torch.full((N, Q), 0.5), Q), "sum to 1"),
    ],
)
def test_impossible_settings_and_targets_are_refused(make, said):
    with pytest.raises(InvalidInputError, match=said):
        make()
