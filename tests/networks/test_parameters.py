import pytest
import torch
from torch import nn

import fsvi
from fsvi.networks.network import Network
from fsvi.networks.parameters import batch_norms, deterministic_names, matching_names
from fsvi.posteriors.mean_field import prior_names

CONTEXT = fsvi.contexts.Dataset(torch.randn(20, 3))


def normalized():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    nn.init.normal_(net[1].weight)
    return net


def shifted_data():
    return 5 + 3 * torch.randn(30, 3), torch.randint(2, (30,))


def freeze_all_but_the_head(net):
    for p in (p for layer in list(net)[:-1] for p in layer.parameters()):
        p.requires_grad_(False)
    return net


METHODS = {
    "FSVI from a trained network": lambda net: fsvi.FSVI.from_trained(net, fsvi.Categorical(), CONTEXT, freeze=True),
    "SWAG": lambda net: fsvi.SWAG(freeze_all_but_the_head(net), fsvi.Categorical(), start=0.0, num_models=2),
    "Ensemble": lambda net: fsvi.Ensemble.of(
        [fsvi.MAP(freeze_all_but_the_head(each), fsvi.Categorical()) for each in (net, normalized())]
    ),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_frozen_batch_norm_stays_in_eval_mode(name):
    net = normalized()
    mean, var = net[1].running_mean.clone(), net[1].running_var.clone()
    method = METHODS[name](net)
    fsvi.fit(method, shifted_data(), epochs=3, seed=0, progress=False)
    assert torch.equal(method.net[1].running_mean, mean) and torch.equal(method.net[1].running_var, var)
    method.train()
    assert not method.net[1].training and method.net[0].training
    x, _ = shifted_data()
    torch.testing.assert_close(method.net[:2](x), net.eval()[:2](x))


def test_a_batch_norm_with_a_trainable_shift_still_learns():
    net = freeze_all_but_the_head(normalized())
    net[1].bias.requires_grad_(True)
    method = fsvi.MAP(net, fsvi.Categorical())
    fsvi.fit(method, shifted_data(), epochs=1, seed=0, progress=False)
    assert not torch.equal(method.net[1].running_mean, net[1].running_mean)


@pytest.mark.parametrize("freeze", [True, False])
def test_a_norm_without_parameters_is_frozen_with_the_network_around_it(freeze):
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, affine=False), nn.ReLU(), nn.Linear(4, 2))
    network = Network(freeze_all_but_the_head(net) if freeze else net)
    assert network.frozen_norms() == ([net[1]] if freeze else [])


def test_only_normalization_layers_have_deterministic_parameters(make):
    net, _ = make("resnet18")
    norms = {name for name, module in net.named_modules() if isinstance(module, nn.BatchNorm2d)}
    assert deterministic_names(net) == {f"{name}.{kind}" for name in norms for kind in ("weight", "bias")}
    assert len(batch_norms(net)) == 20 and batch_norms(make("layer_norm")[0]) == []
    assert deterministic_names(make("transformer")[0]) == set()


class Tokens(nn.Module):
    """Embedded words with a class token, a learned scale, and a normalized weight that no layer resets."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4, padding_idx=2)
        nn.init.constant_(self.embed.weight.data[2], 3.0)
        self.token = nn.Parameter(5 + torch.randn(400, 4))
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.mix = nn.utils.parametrizations.weight_norm(nn.Linear(4, 5))
        self.fc = nn.Linear(5, 3)

    def forward(self, x):
        h = self.embed(x).mean(1) + self.token.mean(0)
        return self.fc(torch.tanh(self.scale * self.mix(h)))


def words(num=12):
    return torch.randint(7, (num, 5)), torch.randint(3, (num,))


def test_redrawn_parameters_that_no_layer_resets_keep_mean_and_scale_only():
    net = Tokens()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        drawn = Network(net).redrawn().module
    assert not torch.equal(drawn.token, net.token)
    assert drawn.token.mean().item() == pytest.approx(5.0, abs=0.15)
    assert drawn.token.std().item() == pytest.approx(1.0, abs=0.1)
    assert drawn.scale == net.scale, "a single number has no scale to draw from"
    assert not torch.equal(drawn.mix.parametrizations.weight.original1, net.mix.parametrizations.weight.original1)


EMBEDDED = {
    "FSVI jvp": lambda net: fsvi.FSVI(net, fsvi.Categorical(), fsvi.contexts.Dataset(words(20)[0]), num_context=4),
    "MFVI": lambda net: fsvi.MFVI(net, fsvi.Categorical()),
    "SWAG": lambda net: fsvi.SWAG(net, fsvi.Categorical(), start=0.0, prior_variance=0.1),
    "FBNN": lambda net: fsvi.FBNN(
        net, fsvi.Categorical(), fsvi.contexts.Dataset(words(20)[0]), prior=fsvi.priors.Constant(), num_samples=4
    ),
}


def padded():
    net = nn.Sequential(nn.Embedding(7, 4, padding_idx=2), nn.Flatten(), nn.Linear(20, 6), nn.Tanh(), nn.Linear(6, 3))
    nn.init.constant_(net[0].weight.data[2], 3.0)
    return net


@pytest.mark.parametrize("name", EMBEDDED)
def test_the_padding_row_of_an_embedding_is_neither_random_nor_learned(name, tmp_path):
    method = EMBEDDED[name](padded())
    fsvi.fit(method, words(), epochs=3, lr=0.1, seed=0, progress=False)
    seen = []
    method.net[0].register_forward_hook(lambda layer, args, output: seen.append(output.detach()))
    method.predict(torch.full((1, 5), 2), num_samples=5)
    assert seen and all(torch.equal(each, torch.full((1, 5, 4), 3.0)) for each in seen)
    assert torch.equal(method.net[0].weight[2], torch.full((4,), 3.0))
    if hasattr(method, "posterior"):
        q = method.posterior
        drawn = q.draw().params["0.weight"]
        assert torch.equal(drawn[2], torch.full((4,), 3.0)) and not torch.equal(drawn[1], q.means()["0.weight"][1])
    method.save(tmp_path / "file")
    loaded = fsvi.load(tmp_path / "file", nn.Sequential(*padded()[:1], *padded()[1:]))
    x, _ = words()
    assert torch.equal(loaded.predict(x, 3).mean, method.predict(x, 3).mean)


# Patterns -------------------------------------------------------------------------------------------------------------


def patterned() -> nn.Module:
    net = nn.ModuleDict({"layer1": nn.Linear(2, 2), "layer10": nn.Linear(2, 2), "norm": nn.BatchNorm1d(2)})
    net["deep"] = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2).requires_grad_(False)})
    return net


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["layer1"], ["layer1.weight", "layer1.bias"]),
        (["layer1*"], ["layer1.weight", "layer1.bias", "layer10.weight", "layer10.bias"]),
        (["*.weight"], ["layer1.weight", "layer10.weight", "deep.a.weight"]),
        (["deep"], ["deep.a.weight", "deep.a.bias"]),
        (["deep.*", "layer10.bias"], ["layer10.bias", "deep.a.weight", "deep.a.bias"]),
    ],
)
def test_patterns_match_layers_and_parameters(patterns, expected):
    net = patterned()
    assert matching_names(net, patterns, prior_names(net)) == expected
