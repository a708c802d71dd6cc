import json
import math
import random
from collections import Counter
from copy import deepcopy

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

import fsvi
from fsvi.serialization import read_tree, write_tree
from scenarios import (
    FAST,
    SCENARIOS,
    box,
    build,
    classifier,
    copied,
    curve,
    dense,
    image_classifier,
    images,
    normalised,
    points,
    regressor,
    same_bits,
)

contexts, priors = fsvi.contexts, fsvi.priors
SHORT = {"epochs": 2, "batch_size": 10, "lr": 1e-2}


def assert_loaded_is_the_same(method, net, x, path):
    """Saved and loaded, with a network and by itself, it is configured identically and predicts the same bits."""
    method.save(path)
    assert_is_the_same(method, fsvi.load(path), x)
    return assert_is_the_same(method, fsvi.load(path, net), x)


def assert_is_the_same(method, loaded, x):
    assert type(loaded) is type(method)
    assert loaded.config() == method.config()
    assert loaded.num_data == method.num_data
    assert same_bits(copied(loaded), copied(method))
    assert same_bits(dict(loaded.net.state_dict()), dict(method.net.state_dict()))
    first, second = (m.predict(x, num_samples=7, seed=3) for m in (method, loaded))
    assert torch.equal(first.samples, second.samples)
    assert torch.equal(first.mean, second.mean) and torch.equal(first.variance, second.variance)
    assert not any(module.training for module in loaded.modules())
    return loaded


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_trained_method_comes_back_bit_by_bit(name, tmp_path):
    method, data = build(name)
    fsvi.fit(method, data, **SHORT)
    net = normalised(seed=9) if "batch_norm" in name else dense(method.network.num_outputs, seed=9)
    loaded = assert_loaded_is_the_same(method, net, data[0], tmp_path / "file")
    assert loaded.input_shape == method.input_shape == data[0].shape[1:]


@pytest.mark.parametrize(
    "context",
    [
        box(),
        contexts.Uniform(),
        contexts.Uniform(low=np.array([-1.0, -2.0]), high=torch.tensor([1.0, 2.0])),
        contexts.Uniform(-1, 2),
        contexts.Dataset(points()[0]),
        contexts.Batch(),
        contexts.Mixture([box(), contexts.Dataset(points()[0]), contexts.Batch()], [0.4, 0.4, 0.2]),
    ],
    ids=lambda context: type(context).__name__,
)
def test_with_any_context(context, tmp_path):
    method = classifier(context=context)
    fsvi.fit(method, points(), **SHORT)
    assert_loaded_is_the_same(method, dense(), points()[0], tmp_path / "file")


@pytest.mark.parametrize(
    "context", [contexts.Monochrome(), contexts.Monochrome(images()[0]), contexts.Corrupted(noise=0.5)]
)
def test_with_any_context_of_images(context, tmp_path):
    method = fsvi.FSVI(normalised(), fsvi.Categorical(), context=context, **FAST)
    fsvi.fit(method, images(), **SHORT)
    assert_loaded_is_the_same(method, normalised(), images()[0], tmp_path / "file")


@pytest.mark.parametrize(
    "prior",
    [
        priors.Constant(variance=2.0),
        priors.Induced(variance=0.5, seed=4),
        priors.Induced(variance=0.5, feature_variance=0.1),
        priors.Empirical(dense(seed=5), variance=0.3),
        priors.Empirical(classifier()),
        priors.Empirical(classifier(stochastic="last_layer")),
    ],
    ids=["constant", "induced", "induced_features", "network", "posterior", "last_layer_posterior"],
)
def test_with_any_prior(prior, tmp_path):
    method = classifier(prior=prior)
    fsvi.fit(method, points(), **SHORT)
    loaded = assert_loaded_is_the_same(method, dense(seed=9), points()[0], tmp_path / "file")
    kls = []
    for each in (method, loaded, fsvi.load(tmp_path / "file")):
        torch.manual_seed(0)
        kls.append(each.function_kl(points()[0][:5]).item())
    assert kls[0] == kls[1] == kls[2]


@pytest.mark.parametrize(
    ("likelihood", "outputs", "targets"),
    [
        (fsvi.Categorical(), 2, points()[1]),
        (fsvi.Gaussian(noise=0.2), 1, curve()[1]),
        (fsvi.Gaussian(noise=0.2, learn_noise=True), 1, curve()[1]),
        (fsvi.Gaussian(noise=[0.2, 0.4], learn_noise=True), 2, curve()[1].expand(-1, 2)),
        (fsvi.Gaussian(noise=torch.tensor([0.2, 0.4])), 2, curve()[1].expand(-1, 2)),
        (fsvi.Gaussian(heteroscedastic=True), 2, curve()[1]),
    ],
    ids=["categorical", "fixed", "learned", "learned_each", "tensor", "heteroscedastic"],
)
@pytest.mark.parametrize("kind", ["FSVI", "MAP"])
def test_with_any_likelihood(likelihood, outputs, targets, kind, tmp_path):
    make = {
        "FSVI": lambda net: fsvi.FSVI(net, likelihood, context=box(), **FAST),
        "MAP": lambda net: fsvi.MAP(net, likelihood),
    }
    method = make[kind](dense(outputs))
    fsvi.fit(method, (points()[0], targets), **SHORT)
    loaded = assert_loaded_is_the_same(method, dense(outputs), points()[0], tmp_path / "file")
    if isinstance(likelihood, fsvi.Gaussian):
        assert torch.equal(loaded.likelihood.noise, method.likelihood.noise)


def test_a_method_that_was_not_trained_comes_back_too(tmp_path):
    assert_loaded_is_the_same(classifier(), dense(), points()[0], tmp_path / "file")


def test_frozen_and_double_parameters_come_back(tmp_path):
    nets = [dense(seed=seed).double() for seed in (0, 1)]
    for net in nets:
        net[0].weight.requires_grad_(False)
    method = fsvi.FSVI(nets[0], fsvi.Categorical(), context=box(), **FAST)
    fsvi.fit(method, points(), **SHORT)
    assert_loaded_is_the_same(method, nets[1], points()[0], tmp_path / "file")


def test_statistics_of_batch_norm_are_part_of_the_file(tmp_path):
    method = image_classifier()
    fsvi.fit(method, images(), **SHORT)
    method.save(tmp_path / "file")
    loaded = fsvi.load(tmp_path / "file", normalised())
    assert not torch.equal(loaded.net[1].running_mean, normalised()[1].running_mean)
    assert torch.equal(loaded.net[1].running_var, method.net[1].running_var)
    assert torch.equal(loaded.prior.net[1].running_var, method.prior.net[1].running_var)


def test_the_network_given_to_load_is_not_changed(tmp_path):
    classifier().save(tmp_path / "file")
    net = dense(seed=9)
    fsvi.load(tmp_path / "file", net)
    assert same_bits(dict(net.state_dict()), dict(dense(seed=9).state_dict()))


def test_a_file_is_safetensors_without_training_data(tmp_path):
    method = classifier(context=contexts.Dataset(points()[0]))
    method.save(tmp_path / "file")
    with safe_open(tmp_path / "file", "pt") as file:
        names = set(file.keys())
        settings = json.loads(file.metadata()["fsvi"])["config"]["settings"]
    assert names == {f"/tensors/{name}" for name in method.state_dict()}
    assert settings["context"] == {"class": "Dataset", "settings": {}}


# Going on after loading


def test_a_context_that_was_not_saved_is_asked_for_and_can_be_set(tmp_path):
    method = classifier(context=contexts.Dataset(points()[0]))
    method.save(tmp_path / "file")
    loaded = fsvi.load(tmp_path / "file", dense())
    before = copied(loaded)
    with pytest.raises(fsvi.errors.InvalidInputError, match=r"method\.context"):
        fsvi.fit(loaded, points(), **SHORT)
    assert same_bits(copied(loaded), before)
    loaded.context = contexts.Dataset(points()[0])
    for each in (loaded, method):
        fsvi.fit(each, points(), **SHORT)
    assert same_bits(copied(loaded), copied(method))


@pytest.mark.parametrize("name", ["conditional", "learned_noise", "map_batch_norm"])
def test_training_goes_on_from_a_file_as_it_would_have_without(name, tmp_path):
    method, data = build(name)
    fsvi.fit(method, data, **SHORT)
    method.save(tmp_path / "file")
    loaded = fsvi.load(tmp_path / "file", build(name)[0].net)
    for each in (method, loaded):
        fsvi.fit(each, data, **SHORT)
    assert same_bits(copied(loaded), copied(method))


# What is refused


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "method.fsvi"
    classifier().save(path)
    return path


class Reordered(nn.Module):
    """The parameters of `dense`, by the same names, in another order."""

    def __init__(self):
        super().__init__()
        for name, module in reversed(list(dense().named_children())):
            self.add_module(name, module)

    def forward(self, x):
        return self.get_submodule("3")(torch.tanh(self.get_submodule("0")(x)))


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (
            lambda: nn.Sequential(nn.Linear(2, 7), nn.Tanh(), nn.Linear(7, 2)),
            r"0\.weight \(6, 2\).*0\.weight \(7, 2\)",
        ),
        (
            lambda: nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 2)),
            r"3\.weight \(2, 6\).*2\.weight \(2, 6\)",
        ),
        (lambda: dense().append(nn.Linear(2, 2)), r"None.*4\.weight \(2, 2\)"),
        (lambda: dense()[:1], r"3\.weight \(2, 6\).*None"),
        (Reordered, r"0\.weight \(6, 2\).*3\.weight \(2, 6\)"),
    ],
    ids=["width", "names", "longer", "shorter", "order"],
)
def test_another_architecture_is_named(saved, net, message):
    with pytest.raises(fsvi.errors.FileFormatError, match=message):
        fsvi.load(saved, net())


def test_other_buffers_or_frozen_parameters_are_named(saved):
    net = dense()
    net.register_buffer("scale", torch.ones(3))
    with pytest.raises(fsvi.errors.FileFormatError, match=r"net\.scale"):
        fsvi.load(saved, net)
    frozen = dense()
    frozen[0].requires_grad_(False)
    with pytest.raises(fsvi.errors.FileFormatError, match="fit"):
        fsvi.load(saved, frozen)


def test_a_network_is_needed(saved):
    with pytest.raises(fsvi.errors.InvalidInputError, match="class Sequential"):
        fsvi.load(saved, nn.Sequential)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(fsvi.errors.FileFormatError, match=r"nowhere\.fsvi"):
        fsvi.load(tmp_path / "nowhere.fsvi", dense())


def test_a_checkpoint_is_not_a_method(tmp_path):
    fsvi.fit(classifier(), points(), checkpoint=tmp_path, **SHORT)
    with pytest.raises(fsvi.errors.FileFormatError, match=r"'fsvi checkpoint'.*'fsvi method'"):
        fsvi.load(tmp_path / "checkpoint.fsvi", dense())


def test_a_file_of_an_estimator_says_what_reads_it(tmp_path):
    x, y = points()
    fsvi.FSVIClassifier(epochs=1, module=dense(), random_state=0).fit(x.numpy(), y.numpy()).save(tmp_path / "file")
    with pytest.raises(fsvi.errors.FileFormatError, match=r"FSVIClassifier\.load"):
        fsvi.load(tmp_path / "file")
    classifier().save(tmp_path / "method")
    with pytest.raises(fsvi.errors.FileFormatError, match=r"fsvi\.load"):
        fsvi.FSVIClassifier.load(tmp_path / "method")


def test_a_tampered_file_is_found_or_harmless(saved, tmp_path):
    whole, draw = saved.read_bytes(), random.Random(1)
    expected = copied(fsvi.load(saved, dense()))
    path = tmp_path / "tampered"
    for place in [draw.randrange(len(whole)) for _ in range(200)]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 + draw.randrange(255))]) + whole[place + 1 :])
        try:
            assert same_bits(copied(fsvi.load(path, dense())), expected)
        except fsvi.errors.FSVIError as error:
            assert "\n" not in str(error)


def forgeries(tree):
    """The tree, with something in it that does not belong there."""
    for key in tree:
        yield {name: value for name, value in tree.items() if name != key}
        yield {**tree, key: 3}
    config = tree["config"]
    for change in (
        {"class": "Uniform"},
        {"class": []},
        {"class": "Method"},
        {"settings": None},
        {"settings": {"x": 1}},
    ):
        yield {**tree, "config": {**config, **change}}
    layers = tree["network"]["layers"]
    for change in ({"layer": "Method"}, {"children": layers["children"][:2]}, {"children": None}):
        yield {**tree, "network": {**tree["network"], "layers": {**layers, **change}}}
    for name, value in (
        ("likelihood", 3),
        ("num_context", -1),
        ("context", {"class": "FSVI", "settings": {}}),
        ("network", []),
        ("network", {"head": []}),
        ("network", {**config["settings"]["network"], "output": {}}),
    ):
        yield {**tree, "config": {**config, "settings": {**config["settings"], name: value}}}
    yield {**tree, "tensors": {**tree["tensors"], "posterior.mean": 3.0}}
    yield {**tree, "tensors": {}}
    yield []


def test_a_forged_file_with_a_right_checksum_raises_only_errors_of_fsvi(saved, tmp_path):
    tree = read_tree(saved, "fsvi method")
    accepted = []
    for forged in forgeries(tree):
        write_tree(tmp_path / "forged", forged, "fsvi method")
        for net in (dense(), None):
            try:
                fsvi.load(tmp_path / "forged", net)
            except fsvi.errors.FSVIError as error:
                assert "\n" not in str(error)
            else:
                changed = [key for key in tree if key not in forged or forged[key] is not tree[key]]
                accepted.append((*changed, "alone" if net is None else "given"))
    assert Counter(accepted) == {
        ("network", "given"): 5,
        **{(key, how): 1 for key in ("input_shape", "num_data") for how in ("given", "alone")},
    }


ODD = ("text", -1, math.nan, [], {"x": 1}, None, 10**400, {"class": "Uniform"}, 1e308, 0)


def places(tree, before=()):
    """The keys that lead to every value in nested dictionaries and lists."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield (*before, key)
        if isinstance(value, (dict, list)):
            yield from places(value, (*before, key))


def put(tree, place, value):
    for key in place[:-1]:
        tree = tree[key]
    tree[place[-1]] = value


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")  # 0 stands in the place of sizes too
def test_whatever_stands_in_a_settings_place_is_taken_or_refused_by_the_files_name(tmp_path):
    path = tmp_path / "forged.fsvi"
    regressor().save(path)
    tree = read_tree(path, "fsvi method")
    tensors, refused = tree.pop("tensors"), 0
    for number, place in enumerate(list(places(tree)) * 2):
        value = ODD[number % len(ODD)]
        forged = deepcopy(tree)
        put(forged, place, value)
        write_tree(path, {**forged, "tensors": tensors}, "fsvi method")
        try:
            fsvi.load(path).predict(points()[0], 2)
        except fsvi.errors.FSVIError as error:
            refused += 1
            said = str(error)
            assert str(path) in said and said.endswith((".", "?")) and "\n" not in said, (place, value)
    assert refused > 60


@pytest.mark.parametrize("below", ["file/method.fsvi", "folder"])
def test_an_unwritable_path_leaves_nothing_behind(tmp_path, below):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    with pytest.raises(fsvi.errors.InvalidInputError, match=f"{below}"):
        classifier().save(tmp_path / below)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


class Scaled(nn.Module):
    """A network that a file does not describe."""

    def __init__(self, scale):
        super().__init__()
        self.body, self.fc = nn.Linear(2, 4), nn.Linear(4, 2)
        self.register_buffer("scale", torch.tensor(scale))

    def forward(self, x):
        return self.fc(self.scale * torch.tanh(self.body(x)))


def test_the_priors_own_buffers_are_saved(tmp_path):
    x, _ = points()
    method = fsvi.FSVI(
        Scaled(1.0), fsvi.Categorical(), contexts.Dataset(x), prior=priors.Induced(), stochastic="last_layer"
    )
    method.save(tmp_path / "file")
    assert torch.equal(fsvi.load(tmp_path / "file", Scaled(5.0)).function_kl(x), method.function_kl(x))


# Without the network's code


def test_a_network_that_is_not_described_is_asked_for(tmp_path):
    fsvi.MAP(Scaled(1.0), fsvi.Categorical()).save(tmp_path / "own.fsvi")
    with pytest.raises(fsvi.errors.FileFormatError, match=r"own\.fsvi.*fsvi\.load\(path, net\)"):
        fsvi.load(tmp_path / "own.fsvi")


def test_members_whose_networks_are_other_functions_are_not_described_by_one(tmp_path):
    nets = iter([fsvi.networks.mlp(2, (4,), 2, activation) for activation in (nn.ReLU, nn.Tanh)])
    fsvi.Ensemble(lambda: fsvi.MAP(next(nets), fsvi.Categorical()), 2).save(tmp_path / "file")
    with pytest.raises(fsvi.errors.FileFormatError, match="network"):
        fsvi.load(tmp_path / "file")


def test_a_described_network_larger_than_the_file_is_refused(saved, tmp_path):
    tree = read_tree(saved, "fsvi method")
    tree["network"]["layers"]["children"][0][1]["settings"]["out_features"] = 2**40
    write_tree(tmp_path / "huge", tree, "fsvi method")
    with pytest.raises(fsvi.errors.FileFormatError, match="network"):
        fsvi.load(tmp_path / "huge")
