"""The compatibility matrix: every kind of model in every mode, from training to files."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

import fsvi
from compat.graphs import GraphBatch, rings
from compat.models import CASES, CLASSES, HUGGING_FACE, Case, N
from fsvi.functions.contexts.general import context_points

MODES: dict[str, dict[str, Any]] = {
    "jvp": {"linearize": "jvp"},
    "conditional": {"linearize": "conditional"},
    "last_layer": {"stochastic": "last_layer"},
}


def made(name: str) -> tuple[Case, nn.Module, Any, torch.Tensor]:
    if name in HUGGING_FACE:
        pytest.importorskip("peft" if name == "lora" else "transformers")
    case = CASES[name]
    torch.manual_seed(0)
    net, x = case.make(), case.x()
    return (
        case,
        net,
        x,
        torch.arange(N * max(1, torch.Size(case.positions).numel())).reshape(N, *case.positions) % CLASSES,
    )


def settings(case: Case, mode: str) -> dict[str, Any]:
    chosen = case.stochastic if isinstance(case.stochastic, str) else list(case.stochastic)
    return {"stochastic": chosen, "num_context": 4, **MODES[mode]}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_fit_predict_save_and_load(name, mode, tmp_path):
    case, net, x, y = made(name)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    method = fsvi.FSVI(net, fsvi.Categorical(), fsvi.contexts.Batch(), **settings(case, mode))
    history = fsvi.fit(method, (x, y), epochs=2, batch_size=8, progress=False)
    p = method.predict(x, num_samples=4)
    assert torch.isfinite(torch.tensor(history.loss)).all()
    assert p.mean.shape == (*y.shape, CLASSES)
    assert method.network.head == case.head
    assert method.num_data == y.numel()
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())
    moved = dict(method.net.named_parameters())
    assert any(not torch.equal(moved[key], value) for key, value in before.items() if key in moved)
    method.save(tmp_path / "method.fsvi")
    torch.manual_seed(1)
    loaded = fsvi.load(tmp_path / "method.fsvi", case.make())
    assert torch.equal(loaded.predict(x, num_samples=4).samples, p.samples)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # transformers says that its default will change
@pytest.mark.parametrize("mode", ["conditional", "last_layer"])
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_gradient_checkpoints_of_transformers_change_nothing(name, mode, monkeypatch):
    losses, made_again = [], []
    start = torch.utils.checkpoint._CheckpointFrame.__init__
    monkeypatch.setattr(
        torch.utils.checkpoint._CheckpointFrame, "__init__", lambda *args: (made_again.append(1), start(*args))[1]
    )
    for options in (None, {"use_reentrant": False}):
        case, net, x, y = made(name)
        if options is not None:
            net.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
        method = fsvi.FSVI(net, fsvi.Categorical(), fsvi.contexts.Batch(), **settings(case, mode))
        losses.append(fsvi.fit(method, (x, y), epochs=2, batch_size=8, progress=False, seed=0).loss)
        assert bool(made_again) == (options is not None)
        made_again.clear()
    assert losses[1] == pytest.approx(losses[0])


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_gradient_checkpoints_of_transformers_need_the_conditional_covariance():
    case, net, x, y = made("bert")
    net.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    method = fsvi.FSVI(net, fsvi.Categorical(), fsvi.contexts.Batch(), **settings(case, "jvp"))
    with pytest.raises(fsvi.errors.InvalidInputError, match='use linearize="conditional"'):
        fsvi.fit(method, (x, y), epochs=1, progress=False)


@pytest.mark.parametrize("name", CASES)
def test_from_trained_keeps_the_networks_function(name):
    """With frozen features, the mean of the posterior is the trained network itself."""
    _, net, x, y = made(name)
    trained = fsvi.MAP(net, fsvi.Categorical())
    fsvi.fit(trained, (x, y), epochs=1, progress=False)
    method = fsvi.FSVI.from_trained(trained, context=fsvi.contexts.Batch(), freeze=True, num_context=4)
    expected = trained.predict(x).mean
    inputs = method.network.arranged(method.check_inputs(x))
    with torch.no_grad():
        own = method.eval().network(inputs).softmax(-1)
    torch.testing.assert_close(own, expected)
    fsvi.fit(method, (x, y), epochs=1, progress=False)
    assert method.predict(x, num_samples=2).mean.shape == expected.shape


@pytest.mark.parametrize("name", CASES)
def test_features_and_last_layer_give_the_outputs(name):
    """Φ(x) Wᵀ + b at every position, whatever the model does with the head's output."""
    case, net, x, _ = made(name)
    net.eval()
    method = fsvi.MAP(net, fsvi.Categorical())
    inputs = method.check_inputs(x)
    with torch.no_grad():
        features, outputs = method.eval().network.with_features(inputs)
        layer = method.network.linear
        weight, bias = layer.weight.flatten(1), layer.bias
        expected = features @ weight.T + (0 if bias is None else bias)
        torch.testing.assert_close(outputs, expected)
        torch.testing.assert_close(method.network(inputs), expected)
    assert features.shape == (N, *case.positions, weight.shape[1])


@pytest.mark.parametrize("name", ["bert", "encoder", "tagger"])
def test_dictionaries_that_hold_the_labels(name):
    """Labels among the inputs are the targets: the same losses as with pairs, from memory and from a loader."""
    _, net, x, y = made(name)
    rows = [({key: value[i] for key, value in x.items()}, y[i]) for i in range(N)]
    labeled = [{**inputs, "labels": label} for inputs, label in rows]
    loaders = [torch.utils.data.DataLoader(each, batch_size=5) for each in (rows, labeled)]
    losses = []
    for data in ((x, y), {**x, "labels": y}, *loaders):
        method = fsvi.FSVI(net, fsvi.Categorical(), fsvi.contexts.Batch(), stochastic="last_layer", num_context=4)
        losses.append(fsvi.fit(method, data, epochs=2, batch_size=5, progress=False).loss)
    assert losses[0] == losses[1]
    assert losses[2] == losses[3]


def test_batch_encodings_are_dictionaries():
    transformers = pytest.importorskip("transformers")
    _, net, x, y = made("bert")
    method = fsvi.FSVI(net, fsvi.Categorical(), fsvi.contexts.Batch(), stochastic="last_layer", num_context=4)
    encoding = transformers.BatchEncoding(x)
    fsvi.fit(method, (encoding, y), epochs=1, progress=False)
    assert torch.equal(method.predict(encoding, 3).samples, method.predict(x, 3).samples)


EVERYWHERE = {
    "map": fsvi.MAP,
    "mc_dropout": fsvi.MCDropout,
    "mfvi": fsvi.MFVI,
    "radial": fsvi.RadialMFVI,
    "swag": fsvi.SWAG,
}
ONE_OUTPUT = {
    "laplace": fsvi.Laplace,
    "vogn": fsvi.VOGN,
    "rank1": fsvi.Rank1,
    "duq": lambda net, likelihood: fsvi.DUQ(net, likelihood, gradient_penalty=0),
}


@pytest.mark.parametrize(
    ("name", "method"),
    [
        *product(("encoder", "two inputs"), EVERYWHERE | ONE_OUTPUT),
        *product(("tagger", "u-net"), EVERYWHERE),
    ],
)
def test_other_methods_take_the_same_inputs_and_positions(name, method):
    _, net, x, y = made(name)
    made_method = (EVERYWHERE | ONE_OUTPUT)[method](net, fsvi.Categorical())
    fsvi.fit(made_method, (x, y), epochs=2, progress=False)
    assert made_method.predict(x, num_samples=3).mean.shape == (*y.shape, CLASSES)


def test_ensembles_at_every_position():
    case, _, x, y = made("tagger")
    ensemble = fsvi.Ensemble(lambda: fsvi.MAP(case.make(), fsvi.Categorical()), 2)
    fsvi.fit(ensemble, (x, y), epochs=2, progress=False)
    assert ensemble.predict(x).samples.shape == (2, *y.shape, CLASSES)


NEED_ONE_OUTPUT = [fsvi.Laplace, fsvi.VOGN, fsvi.IVON, fsvi.SPG, fsvi.DUQ, fsvi.FBNN, fsvi.Rank1, fsvi.VBLL, fsvi.FSEB]


@pytest.mark.parametrize("method", [*NEED_ONE_OUTPUT, fsvi.SFSVI])
def test_methods_that_need_one_output_per_input_say_so(method):
    _, net, x, y = made("tagger")
    with pytest.raises(fsvi.errors.HeadError, match="positions"):
        fsvi.fit(method(net, fsvi.Categorical()), (x, y), epochs=1, progress=False)


@pytest.mark.parametrize(("name", "said"), [("encoder", "one tensor"), ("u-net", "position")])
def test_diagnose_says_what_it_needs(name, said):
    _, net, x, y = made(name)
    with pytest.raises(fsvi.errors.InvalidInputError, match=said):
        fsvi.diagnose(fsvi.MAP(net, fsvi.Categorical()), (x, y))


def test_loaders_of_dictionaries_are_predicted_in_batches():
    _, net, x, y = made("encoder")
    rows = [{**{key: value[i] for key, value in x.items()}, "labels": y[i]} for i in range(N)]
    method = fsvi.FSVI(net, fsvi.Categorical(), fsvi.contexts.Batch(), stochastic="last_layer")
    parts = list(method.predict_batches(torch.utils.data.DataLoader(rows, batch_size=5), 4))
    torch.testing.assert_close(torch.cat([part.mean for part in parts]), method.predict(x, 4).mean)
    torch.testing.assert_close(method.predict(x, 4, summary=True).mean, method.predict(x, 4).mean)


class WholeGraphs(nn.Module):
    """A network whose forward takes a batch of graphs as it is."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, data: Any, scale: float = 1.0) -> torch.Tensor:
        return self.net(scale * data["x"], data["edge_index"], data["batch"])


def graph_loader(x: GraphBatch, batch_size: int = N) -> Any:
    return torch.utils.data.DataLoader(x.to_data_list(), batch_size, collate_fn=GraphBatch.from_data_list)


def test_graphs_from_memory_and_from_a_loader():
    """The same losses with labels next to the graphs and among them; predictions do not depend on batches."""
    _, net, x, y = made("graphs")
    losses = []
    for data in ((x, y), x, graph_loader(x)):
        for each in (net, WholeGraphs(net)):
            method = fsvi.FSVI(each, fsvi.Categorical(), fsvi.contexts.Batch(), num_context=4)
            losses.append(fsvi.fit(method, data, epochs=1, batch_size=N, progress=False).loss)
    assert all(loss == losses[0] for loss in losses[:4])
    assert losses[4] == losses[5]  # a loader draws random numbers of its own
    parts = fsvi.likelihoods.concatenate(list(method.predict_batches(graph_loader(x, 5), 4)))
    torch.testing.assert_close(parts.samples, method.predict(x, 4).samples)


def test_other_graphs_as_context():
    _, net, x, _ = made("graphs")
    context = fsvi.contexts.Mixture([fsvi.contexts.Batch(), fsvi.contexts.Dataset(rings(5, 2))], [0.5, 0.5])
    method = fsvi.FSVI(net, fsvi.Categorical(), context, stochastic="last_layer", num_context=6)
    fsvi.fit(method, x, epochs=2, batch_size=4, progress=False)
    assert len(context_points(method.network, method.context, 6, method.check_inputs(x))) == 6


@pytest.mark.parametrize("kind", ["dataset", "context"])
def test_single_graphs_need_a_batch(kind):
    _, net, x, _ = made("graphs")
    graphs = [SingleGraph() for _ in range(4)]
    with pytest.raises(fsvi.errors.InvalidInputError, match="SingleGraph"):
        context = fsvi.contexts.Dataset(graphs) if kind == "context" else fsvi.contexts.Batch()
        method = fsvi.FSVI(net, fsvi.Categorical(), context, num_context=4)
        fsvi.fit(method, x if kind == "context" else torch.utils.data.DataLoader(graphs), epochs=1, progress=False)


class SingleGraph:
    """An object that torch cannot make a tensor of."""
