import pytest
import torch
from torch import distributions as D
from torch import nn

import fsvi
from fsvi.errors import InvalidInputError
from likelihood_cases import N, Q, expected_curvature, outputs


@pytest.mark.parametrize("draws", [(), (4,)], ids=["one", "draws"])
def test_the_nll_is_summed_over_labels_and_averaged_over_inputs(draws):
    f, y = outputs(*draws), torch.randint(2, (N, Q)).double()
    expected = -D.Bernoulli(logits=f).log_prob(y).sum(-1).mean()
    torch.testing.assert_close(fsvi.Bernoulli().nll(f, y), expected)


def test_soft_labels_are_an_average_over_hard_ones():
    f, y = outputs(), torch.rand(N, Q, dtype=torch.float64)
    losses = -y * D.Bernoulli(logits=f).log_prob(torch.ones(N, Q)) - (1 - y) * D.Bernoulli(logits=f).log_prob(
        torch.zeros(N, Q)
    )
    torch.testing.assert_close(fsvi.Bernoulli().nll(f, y), losses.sum(-1).mean())


def test_unknown_labels_do_not_count_and_have_no_gradient():
    f, y = outputs().requires_grad_(), torch.randint(2, (N, Q)).double()
    y[0, 1] = y[3] = torch.nan
    known = ~y.isnan()
    likelihood = fsvi.Bernoulli()
    nll = likelihood.nll(f, likelihood.check_targets(y, Q))
    expected = -D.Bernoulli(logits=f).log_prob(y.nan_to_num(0))[known].sum() / (N - 1)
    torch.testing.assert_close(nll, expected)
    (gradient,) = torch.autograd.grad(nll, f)
    assert torch.equal(gradient != 0, known) and likelihood.num_observed(y) == N - 1
    assert not likelihood.fisher_root(f.detach(), y)[3].any()


@pytest.mark.parametrize("draws", [(), (4,)], ids=["one", "draws"])
def test_one_logit_is_a_categorical_with_two(draws):
    """Loss and gradient with outputs f are those of Categorical with outputs (0, f)."""
    f = torch.randn(*draws, N, 1, dtype=torch.float64, requires_grad=True)
    labels = torch.arange(N) % 2
    one = fsvi.Bernoulli().nll(f, labels.double()[:, None])
    two = fsvi.Categorical().nll(torch.cat([torch.zeros_like(f), f], dim=-1), labels)
    torch.testing.assert_close(one, two)
    torch.testing.assert_close(*(torch.autograd.grad(loss, f)[0] for loss in (one, two)))


def test_training_with_one_logit_equals_training_with_two():
    """A head whose first row is held at zero is the same classifier."""
    x = torch.randn(40, 2)
    y = (x.sum(1) > 0).long()
    torch.manual_seed(0)
    single = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    one = fsvi.MAP(single, fsvi.Bernoulli(), prior_variance=None)

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = (
                nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1)),
                nn.Linear(1, 2, bias=False),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(x))

    pair = Pair().double()
    pair.body.load_state_dict(single.state_dict())
    pair.head.weight = nn.Parameter(torch.tensor([[0.0], [1.0]], dtype=torch.float64), requires_grad=False)
    two = fsvi.MAP(pair, fsvi.Categorical(), prior_variance=None)
    settings = dict(epochs=20, batch_size=40, lr=0.05)
    first, second = fsvi.fit(one, (x, y), **settings), fsvi.fit(two, (x, y), **settings)
    torch.testing.assert_close(torch.tensor(first.loss), torch.tensor(second.loss))
    torch.testing.assert_close(one.predict(x).class_probabilities(), two.predict(x).class_probabilities())


def test_the_root_of_the_fisher_information():
    f, likelihood = outputs(), fsvi.Bernoulli()
    root = likelihood.fisher_root(f)
    for given, logits in zip(root @ root.mT, f, strict=True):
        targets = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * Q)
        chances = D.Independent(D.Bernoulli(logits=logits), 1).log_prob(targets).exp()
        torch.testing.assert_close(given, expected_curvature(likelihood, logits, targets, chances))


@pytest.mark.parametrize("y", [torch.zeros(N).bool(), torch.ones(N).int(), torch.ones(N, 1)])
def test_labels_become_float_columns(y):
    y = fsvi.Bernoulli().check_targets(y, 1)
    assert y.is_floating_point() and y.shape == (N, 1)


@pytest.mark.parametrize(
    "y", [torch.full((N,), 2), torch.full((N,), -0.5), torch.zeros(N, 2), torch.full((N,), torch.nan)]
)
def test_other_labels_are_refused(y):
    with pytest.raises(InvalidInputError, match=r"Bernoulli|\(n, 1\)|NaN"):
        fsvi.Bernoulli().check_targets(y, 1)
