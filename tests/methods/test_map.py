import pytest
import torch
from torch.distributions import Categorical, Normal

import fsvi
from fsvi_cases import loss_of, stepped

LABELS = torch.tensor([0, 1, 1, 0])


@pytest.mark.parametrize("num_data", [None, 50])
def test_the_loss_is_the_negative_log_joint_over_n_up_to_a_constant(make, num_data):
    net, x = make("mlp")
    method = fsvi.MAP(net, fsvi.Categorical(), prior_variance=0.3)
    method.num_data = num_data
    differences = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        with torch.no_grad():
            for p in method.parameters():
                p.normal_()
        nll = -Categorical(logits=method.net(x)).log_prob(LABELS).mean()
        prior = Normal(0, torch.tensor(0.3, dtype=torch.float64).sqrt())
        log_prior = sum(prior.log_prob(p).sum() for p in method.net.parameters())
        differences.append(loss_of(method, x, LABELS) - (nll - log_prior / (num_data or 4)))
    torch.testing.assert_close(*differences)


class Odd(torch.nn.Module):
    """Sparse gradients, an unused parameter, and gradients that share memory, also with one that has no prior."""

    def __init__(self, has_norm):
        super().__init__()
        self.words, self.head = torch.nn.Embedding(5, 3, sparse=True), torch.nn.Linear(3, 2)
        self.first, self.second, self.unused = (torch.nn.Parameter(torch.randn(9)) for _ in range(3))
        self.norm = torch.nn.BatchNorm1d(9) if has_norm else None

    def forward(self, x):
        second = self.second if self.norm is None else self.norm.weight
        return self.head(self.words(x) @ (self.first.view(3, 3) + second.view(3, 3)))


@pytest.mark.parametrize("has_norm", [False, True])
def test_a_step_has_the_gradient_of_the_loss_also_where_gradients_are_odd(has_norm):
    net, x = Odd(has_norm).double(), torch.tensor([0, 1, 1, 0])
    method = fsvi.MAP(net, fsvi.Categorical(), prior_variance=0.5)
    stepped(method, x, LABELS)
    squares = sum(p.square().sum() for name, p in net.named_parameters() if "norm" not in name)
    (fsvi.Categorical().nll(net(x), LABELS) + squares / (2 * 0.5 * 4)).backward()
    for own, expected in zip(method.net.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(own.grad, expected.grad)


@pytest.mark.parametrize(
    "method", [fsvi.MAP, fsvi.MCDropout, fsvi.SWAG, fsvi.Laplace, fsvi.Rank1, fsvi.MFVI, fsvi.RadialMFVI, fsvi.IVON]
)
def test_padding_rows_stay(method):
    words = torch.nn.Embedding(5, 3, padding_idx=0)
    torch.nn.init.constant_(words.weight, 0.7)
    method = method(torch.nn.Sequential(words, torch.nn.Flatten(), torch.nn.Linear(6, 2)), fsvi.Categorical())
    fsvi.fit(method, (torch.tensor([[0, 1], [2, 0], [3, 4], [0, 0]]), LABELS), epochs=3, lr=0.1)
    rows = method.net[0].weight
    assert torch.equal(rows[0], torch.full((3,), 0.7)) and not torch.equal(rows[1], rows[0])


def test_terms_of_a_class_of_your_own_are_learned(make):
    class Shifted(fsvi.MAP):
        def forward(self, x, y):
            return {**super().forward(x, y), "bias": self.net[-1].bias.sum()}

    net, x = make("mlp")
    method, plain = Shifted(net, fsvi.Categorical()), fsvi.MAP(net, fsvi.Categorical())
    for each in (method, plain):
        stepped(each, x, LABELS)
    torch.testing.assert_close(method.net[-1].bias.grad, plain.net[-1].bias.grad + 1)


def test_without_a_prior_it_is_maximum_likelihood(make):
    net, x = make("mlp")
    method = fsvi.MAP(net, fsvi.Categorical(), prior_variance=None)
    assert list(method(x, LABELS)) == ["nll"]
    torch.testing.assert_close(loss_of(method, x, LABELS), -Categorical(logits=net(x)).log_prob(LABELS).mean())


def test_batch_norm_and_frozen_parameters_have_no_prior(make):
    net, x = make("batch_norm")
    net[3].requires_grad_(False)
    method = fsvi.MAP(net, fsvi.Categorical(), prior_variance=2.0)
    expected = sum(net.get_parameter(n).square().sum() for n in ("0.weight", "0.bias", "6.weight", "6.bias"))
    torch.testing.assert_close(method(x, LABELS)["prior"], expected / (2 * 2.0 * 4))
    fsvi.fit(method, (x, LABELS), epochs=2, lr=0.1)
    assert torch.equal(method.net[3].weight, net[3].weight) and not torch.equal(method.net[0].weight, net[0].weight)


def test_map_of_a_linear_model_is_ridge_regression(make):
    net, x = make("linear", 20)
    y = torch.randn(20, 2, dtype=torch.float64)
    method = fsvi.MAP(net, fsvi.Gaussian(0.5), prior_variance=0.3)
    optimizer = torch.optim.LBFGS(method.net.parameters(), max_iter=100, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = loss_of(method, x, y)
        loss.backward()
        return loss

    optimizer.step(closure)
    design = torch.cat([x, torch.ones_like(x[:, :1])], dim=1)
    ridge = torch.linalg.solve(design.T @ design + 0.25 / 0.3 * torch.eye(4), design.T @ y)
    ours = torch.cat([method.net[0].weight.T, method.net[0].bias[None]])
    torch.testing.assert_close(ours, ridge, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["dropout", "batch_norm", "transformer_dropout", "head_first"])
def test_it_predicts_one_function_whatever_the_batch_size(make, name):
    net, x = make(name, 7)
    method = fsvi.MAP(net, fsvi.Categorical()).train()
    expected = net.eval()(x).softmax(-1)
    for batch_size in (1, 3, 7):
        p = method.predict(x, num_samples=50, batch_size=batch_size)
        assert p.samples.shape == (1, 7, 2)
        torch.testing.assert_close(p.mean, expected)
    torch.testing.assert_close(p.mutual_information(), torch.zeros(7, dtype=torch.float64), atol=1e-12, rtol=0)


def test_the_training_pass_updates_running_statistics_and_the_network_given_is_left_alone(make):
    net, x = make("batch_norm")
    before = {n: t.clone() for n, t in net.state_dict().items()}
    method = fsvi.MAP(net, fsvi.Categorical())
    loss_of(method, x, LABELS)
    assert all(torch.equal(before[n], t) for n, t in net.state_dict().items())
    net.train()(x)
    for name, buffer in net.named_buffers():
        torch.testing.assert_close(method.net.get_buffer(name), buffer)
