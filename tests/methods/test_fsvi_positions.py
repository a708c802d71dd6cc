"""FSVI on networks with outputs at every position: the same numbers as on rows of positions."""

import pytest
import torch
from torch import nn

import fsvi
from fsvi.functions.linearize import LINEARIZERS
from fsvi.networks.heads import Positions


class Pixelwise(nn.Module):
    """1×1 convolutions: every pixel is an input of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 2, 1)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))


def rowwise(net: Pixelwise) -> nn.Module:
    """The same function of rows of pixels, with the same parameters."""
    rows = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2))
    for own, given in zip(rows.parameters(), net.parameters(), strict=True):
        own.data = given.data.flatten(1).clone() if given.dim() > 1 else given.data.clone()
    return rows


X = torch.randn(4, 3, 5, 6, generator=torch.Generator().manual_seed(0))
ROWS = X.movedim(1, -1).flatten(0, 2)
Y = torch.arange(4 * 5 * 6).reshape(4, 5, 6) % 2


def pair(**settings):
    torch.manual_seed(0)
    net = Pixelwise()
    made = [fsvi.FSVI(each, fsvi.Categorical(), **settings) for each in (net, rowwise(net))]
    for method, x in zip(made, (X, ROWS), strict=True):
        method.check_inputs(x)
    return made


@pytest.mark.parametrize("linearize", LINEARIZERS)
def test_the_gaussian_at_positions_is_that_of_a_network_on_rows(linearize):
    dense, rows = pair(linearize=linearize)
    points = Positions(X, torch.rand(7))
    chosen = points.select(X.movedim(1, -1))
    shift = 0.1 * torch.randn_like(dense.posterior.log_std)
    named = dense.posterior.layout.views(shift)
    other = torch.cat([named[name].flatten() for name in ("body.weight", "body.bias", "head.weight", "head.bias")])
    one = LINEARIZERS[linearize](dense.network, dense.posterior, points, dense.posterior.at(shift))
    two = LINEARIZERS[linearize](rows.network, rows.posterior, chosen, rows.posterior.at(other))
    torch.testing.assert_close(one.mean, two.mean)
    torch.testing.assert_close(one.covariance, two.covariance)


def test_predictions_are_one_row_per_position():
    dense, rows = pair(stochastic="last_layer")
    found = dense.predict(X, 5).samples
    assert found.shape == (5, *Y.shape, 2)
    torch.testing.assert_close(found.flatten(1, 3), rows.predict(ROWS, 5).samples)


@pytest.mark.parametrize("stochastic", ["all", "last_layer"])
def test_the_loss_counts_every_position(stochastic):
    """With tiny variances, the likelihood's term is that of the network itself on all pixels."""
    dense, rows = pair(
        stochastic=stochastic, context=fsvi.contexts.Batch(), stds=fsvi.posteriors.Stds(1e-6), num_context=8
    )
    expected = nn.functional.cross_entropy(rows.net(ROWS), Y.flatten())
    x, y = dense.check_batch(X, Y)
    dense.num_data = 4
    torch.testing.assert_close(dense(x, y)["nll"], expected, rtol=1e-4, atol=1e-4)


def test_the_context_set_has_as_many_positions_as_asked_for():
    seen = []

    class Watched(fsvi.contexts.Batch):
        def sample(self, num, batch):
            seen.append(num)
            return super().sample(num, batch)

    (dense, _) = pair(context=Watched(), num_context=8)
    points = dense._points(X)
    assert len(points) == 8
    assert seen == [2]
    assert dense.network.with_features(points)[0].shape == (8, 6)


@pytest.mark.parametrize(
    ("y", "said"),
    [(torch.zeros(4, dtype=torch.long), "positions"), (Y + 5, "labels"), (Y[:2], "4 inputs")],
)
def test_wrong_targets_are_explained(y, said):
    (dense, _) = pair()
    with pytest.raises(fsvi.errors.InvalidInputError, match=said):
        dense.check_batch(X, y)


def test_regression_at_every_position():
    """Targets are in the order of images, (n, channels, height, width), like the network's outputs."""
    method = fsvi.FSVI(Pixelwise(), fsvi.Gaussian(), fsvi.contexts.Batch(), num_context=4)
    _, y = method.check_batch(X, X[:, :2])
    assert torch.equal(y, X[:, :2].movedim(1, -1))
    before = method.predict(X, 8).log_prob(X[:, :2].movedim(1, -1)).mean()
    fsvi.fit(method, (X, X[:, :2]), epochs=60, progress=False)
    assert method.predict(X, 8).log_prob(X[:, :2].movedim(1, -1)).mean() > before


def test_validation_and_patience():
    (dense, _) = pair(context=fsvi.contexts.Batch(), num_context=4)
    history = fsvi.fit(dense, (X, Y), epochs=2, validation=(X, Y), progress=False)
    expected = dense.predict(X, 16).log_prob(Y).mean()
    assert history.validation[-1] == pytest.approx(float(expected), rel=1e-5)


def test_a_gaussian_process_over_positions_is_refused():
    (dense, _) = pair(context=fsvi.contexts.Batch(), prior=fsvi.priors.GaussianProcess())
    with pytest.raises(fsvi.errors.InvalidInputError, match="GaussianProcess"):
        fsvi.fit(dense, (X, Y), epochs=1, progress=False)


@pytest.mark.parametrize("make", [fsvi.priors.Induced, lambda: fsvi.priors.Empirical(Pixelwise())])
def test_priors_of_networks_are_compared_at_the_same_positions(make):
    dense = fsvi.FSVI(Pixelwise(), fsvi.Categorical(), fsvi.contexts.Batch(), prior=make(), num_context=6)
    assert fsvi.fit(dense, (X, Y), epochs=1, progress=False).terms["kl"][0] > 0


def test_the_divergence_from_itself_is_zero_at_any_positions():
    (dense, _) = pair(context=fsvi.contexts.Batch())
    again = fsvi.FSVI(dense.net, fsvi.Categorical(), fsvi.contexts.Batch(), prior=fsvi.priors.Empirical(dense))
    again.posterior.log_std.data.copy_(dense.posterior.log_std)
    assert float(again.function_kl(X).detach()) == pytest.approx(0.0, abs=1e-4)


def test_ignored_positions_do_not_count():
    """Labels of -100, as tokenizers give to padding, leave the loss and the number of targets."""
    (dense, _) = pair()
    method = fsvi.MAP(dense.net, fsvi.Categorical(ignore_index=-100), prior_variance=None)
    y = Y.masked_fill(torch.arange(6) >= 4, -100)
    x, checked = method.check_batch(X, y)
    kept = (y != -100).flatten()
    rows = dense.net(X).movedim(1, -1).flatten(0, 2)[kept]
    expected = nn.functional.cross_entropy(rows, y.flatten()[kept])
    torch.testing.assert_close(method(x, checked)["nll"], expected)
    fsvi.fit(method, (X, y), epochs=1, progress=False)
    assert method.num_data == int(kept.sum())


def test_summaries_and_batches_have_a_row_per_position():
    (dense, _) = pair()
    whole = dense.predict(X, 5)
    summary = dense.predict(X, 5, summary=True)
    torch.testing.assert_close(summary.mean, whole.mean)
    parts = list(dense.predict_batches(X, 5, batch_size=3))
    torch.testing.assert_close(torch.cat([part.mean for part in parts]), whole.mean)


def test_labels_of_images_may_have_a_channel():
    """(n, 1, H, W), as masks are often stored, is the same as (n, H, W)."""
    method = pair(context=fsvi.contexts.Batch())[0]
    assert torch.equal(method.check_batch(X, Y[:, None])[1], method.check_batch(X, Y)[1])
    with pytest.raises(fsvi.errors.InvalidInputError, match="one integer"):
        method.check_batch(X, Y[:, None].expand(-1, 2, -1, -1))


def test_labels_of_nothing_say_how_to_name_them():
    method = pair(context=fsvi.contexts.Batch())[0]
    with pytest.raises(fsvi.errors.InvalidInputError, match="ignore_index=-100"):
        method.check_batch(X, Y.masked_fill(Y == 1, -100))
