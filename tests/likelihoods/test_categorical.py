import pytest
import torch
from torch import distributions as D

import fsvi
from fsvi.errors import InvalidInputError
from likelihood_cases import N, Q, bound, expected_curvature


@pytest.fixture(params=[(), (4,)], ids=["one", "draws"])
def f(request):
    """Outputs (n, Q), or (draws, n, Q)."""
    return torch.randn(*request.param, N, Q, dtype=torch.float64)


OPTIONS = {
    "none": dict(),
    "weights": dict(class_weight=[0.5, 2.0, 1.0]),
    "smoothing": dict(label_smoothing=0.2),
    "both": dict(class_weight=[0.5, 2.0, 1.0], label_smoothing=0.2),
    "all": dict(class_weight=[0.5, 2.0, 1.0], label_smoothing=0.2, ignore_index=-1),
}


def smoothed(settings, targets):
    epsilon = settings.get("label_smoothing", 0.0)
    return (1 - epsilon) * targets + epsilon / Q


@pytest.mark.parametrize("settings", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("soft", [False, True])
def test_the_loss_is_the_weighted_cross_entropy_of_smoothed_targets(f, settings, soft):
    """−Σ_c w_c q_c log p_c with the log-probabilities of torch.distributions, divided by the number of examples."""
    labels = torch.arange(N) % Q
    one_hot = torch.nn.functional.one_hot(labels, Q).double()
    targets = torch.rand(N, Q, dtype=torch.float64).softmax(-1) if soft else one_hot
    log_p = torch.stack([D.Categorical(logits=f).log_prob(torch.tensor(c)) for c in range(Q)], dim=-1)
    weight = torch.tensor(settings.get("class_weight", [1.0] * Q), dtype=torch.float64)
    expected = -(weight * smoothed(settings, targets) * log_p).sum(-1).mean()
    torch.testing.assert_close(fsvi.Categorical(**settings).nll(f, targets if soft else labels), expected)


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


@pytest.mark.parametrize("settings", OPTIONS.values(), ids=OPTIONS)
def test_the_curvature_is_that_of_the_loss(settings):
    """With its target, an example's curvature is the Hessian of its loss; without, the mean over its prediction."""
    f, likelihood = torch.randn(N, Q, dtype=torch.float64), fsvi.Categorical(**settings)
    labels = torch.arange(N) % Q
    with_targets, without = likelihood.fisher_root(f, labels), likelihood.fisher_root(f)
    for i in range(N):
        hessian = expected_curvature(likelihood, f[i], labels[i : i + 1], [1.0])
        torch.testing.assert_close((with_targets @ with_targets.mT)[i], hessian)
        mean = expected_curvature(likelihood, f[i], torch.arange(Q), f[i].softmax(-1))
        torch.testing.assert_close((without @ without.mT)[i], mean)
    if likelihood.ignore_index is not None:
        assert not likelihood.fisher_root(f, torch.full((N,), -1)).any()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: bound(fsvi.Categorical(class_weight=[1.0, 2.0])), "2 values.*3 outputs"),
        (lambda: fsvi.Categorical(class_weight=[1.0, -2.0]), "class_weight"),
        (lambda: fsvi.Categorical(class_weight=[0.0, 0.0]), "class_weight"),
        (lambda: fsvi.Categorical(label_smoothing=1.0), "label_smoothing=1.0"),
        (lambda: fsvi.Categorical(ignore_index=0.5), "ignore_index=0.5"),
        (lambda: fsvi.Categorical(ignore_index=-1).check_targets(torch.tensor([-2, 0]), Q), "-2"),
        (lambda: fsvi.Categorical().check_targets(torch.full((N, Q), 0.5), Q), "sum to 1"),
    ],
)
def test_impossible_settings_and_targets_are_refused(make, said):
    with pytest.raises(InvalidInputError, match=said):
        make()
