"""Exported graphs against `predict`: every method, every likelihood, every kind of input."""

import json

import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import fsvi
import fsvi.export.method
from fsvi.errors import FSVIError
from fsvi.methods import make_method
from fsvi.methods.duq import KernelPredictive
from fsvi.methods.registry import METHODS
from fsvi.networks.devices import make_generator

SAMPLES, SEED = 2, 7
SMALL = {
    "swag": {"start": 0.0},
    "spg": {"num_context": 4, "num_latents": 4, "num_prior_steps": 2},
    "fbnn": {"num_context": 4, "num_samples": 4},
    "fs-eb": {"num_context": 4},
    "gfsvi": {"num_context": 4},
    "fsvi": {"num_context": 4},
}


def mlp(outputs: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, outputs))


def data() -> tuple[Tensor, Tensor]:
    x = torch.randn(12, 4, generator=torch.Generator().manual_seed(1))
    return x, torch.arange(12) % 3


def trained(name: str) -> fsvi.Method:
    settings = SMALL.get(name, {}) | ({"size": 2} if ":" in name else {})
    method = make_method(name, mlp(), fsvi.Categorical(), **settings)
    fsvi.fit(method, data(), epochs=2, batch_size=6, progress=False)
    return method


@pytest.fixture
def traced(monkeypatch, tmp_path):
    """A function that exports a method and returns the traced graph instead of writing it, which takes longer."""

    def export(method, *args, **kwargs):
        graphs = []
        with monkeypatch.context() as patch:
            patch.setattr(fsvi.export.method, "write_graph", lambda path, graph, metadata: graphs.append(graph))
            method.export(tmp_path / "m.pt2", *args, **kwargs)
        return graphs[0].program.module()

    return export


def run_onnx(path, x) -> dict[str, Tensor]:
    session = onnxruntime.InferenceSession(path)
    tensors = x if isinstance(x, dict) else {"input": x}
    names = [output.name for output in session.get_outputs()]
    outputs = session.run(names, {name: value.numpy() for name, value in tensors.items()})
    return {name: torch.as_tensor(value) for name, value in zip(names, outputs, strict=True)}


def outputs(p: fsvi.likelihoods.Predictive) -> dict[str, Tensor]:
    """What a graph must return, by the prediction's own functions, which have tests of their own."""
    if p.is_numeric:
        return {"mean": p.mean, "std": p.variance**0.5}
    named = {"mean": p.mean, "entropy": p.entropy(), "mutual_information": p.mutual_information()}
    return named | ({"score": p.score} if isinstance(p, KernelPredictive) else {})


def check(given: dict[str, Tensor], method, x, samples: int = SAMPLES, seed: int = SEED) -> None:
    expected = outputs(method.predict(x, samples, seed))
    assert list(given) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(given[name], value, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", [*METHODS, "ensemble:map"])
def test_functions_are_those_of_predict(name):
    method, (x, _) = trained(name), data()
    with torch.no_grad():
        functions = method.functions(SAMPLES, make_generator(SEED, method.device))
        p = method.predictive(functions(x))
    torch.testing.assert_close(p.samples, method.predict(x, SAMPLES, SEED).samples, rtol=0, atol=1e-6)


OWN_FUNCTIONS = ["mc-dropout", "swag", "duq", "laplace", "rank1", "vbll", "spg", "gfsvi", "fmgp", "sngp"]


@pytest.mark.parametrize("name", OWN_FUNCTIONS)
def test_the_graph_of_a_method_equals_predict_for_other_numbers_of_inputs(name, traced):
    method, (x, _) = trained(name), data()
    graph = traced(method, SAMPLES, SEED)
    for num in (1, 5):
        check(graph(x[:num]), method, x[:num])


LIKELIHOODS = {
    "bernoulli": (fsvi.Bernoulli(), 1),
    "gaussian": (fsvi.Gaussian(noise=0.3, learn_noise=False), 2),
    "heteroscedastic": (fsvi.Gaussian(heteroscedastic=True), 2),
    "student": (fsvi.StudentT(), 1),
    "poisson": (fsvi.Poisson(), 1),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_the_graph_of_a_likelihood_equals_predict(name, traced):
    likelihood, num = LIKELIHOODS[name]
    method, (x, _) = fsvi.MFVI(mlp(num), likelihood), data()
    given = traced(method, SAMPLES, SEED, example=x[:1])(x)
    check(given, method, x)


@pytest.mark.parametrize(("name", "draws"), [("fsvi", SAMPLES), ("fmgp", 1)])
def test_onnx_runtime_equals_predict_and_the_file_says_what_it_is(tmp_path, name, draws):
    method, (x, _) = trained(name), data()
    method.export(tmp_path / "m.onnx", SAMPLES, SEED, labels=["a", "b", "c"])
    for num in (1, 7):
        check(run_onnx(tmp_path / "m.onnx", x[:num]), method, x[:num])
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    about = session.get_modelmeta().custom_metadata_map
    assert about["method"] == type(method).__name__ and about["draws"] == str(draws)
    assert about["fsvi_version"] == fsvi.__version__
    assert json.loads(about["labels"]) == ["a", "b", "c"]
    assert session.get_inputs()[0].shape == ["batch", 4]


def test_onnx_of_a_residual_network_with_batch_norm(tmp_path):
    from fsvi.networks.resnet import Residual

    torch.manual_seed(0)
    body = [nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(4)]
    pool = [nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)]
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(inplace=True), Residual(body, 3, 4, 2), *pool)
    x = torch.randn(8, 1, 10, 10)
    method = fsvi.MFVI(net, fsvi.Categorical())
    fsvi.fit(method, (x, torch.arange(8) % 3), epochs=1, progress=False)
    method.export(tmp_path / "m.onnx", SAMPLES, SEED)
    check(run_onnx(tmp_path / "m.onnx", x[:5]), method, x[:5])


def test_texts_of_other_lengths(tmp_path):
    torch.manual_seed(0)
    net = fsvi.networks.TextEncoder(20, 2, width=8, length=16)
    method = fsvi.FSVI(net, fsvi.Categorical(), fsvi.contexts.Batch(), num_context=4, stochastic="last_layer")

    def texts(num: int, length: int) -> dict[str, Tensor]:
        mask = (torch.arange(length) < 1 + torch.arange(num)[:, None] % length).long()
        return {"input_ids": torch.randint(1, 20, (num, length)) * mask, "attention_mask": mask}

    fsvi.fit(method, (texts(6, 5), torch.arange(6) % 2), epochs=1, progress=False)
    method.export(tmp_path / "m.onnx", SAMPLES, SEED)
    for num, length in ((1, 5), (4, 9)):
        x = texts(num, length)
        check(run_onnx(tmp_path / "m.onnx", x), method, x)


def test_the_layers_before_the_first_random_one_are_computed_once(traced):
    x, _ = data()
    for stochastic, passes in ((["2"], 1), ("all", 4)):
        method = fsvi.FSVI(mlp(), fsvi.Categorical(), fsvi.contexts.Batch(), stochastic=stochastic)
        graph = traced(method, 4, example=x)
        assert sum("tanh" in str(node.target) for node in graph.graph.nodes) == passes
        check(graph(x), method, x, 4, 0)


def test_a_calibrated_method_exports_scaled_predictions(traced):
    method, (x, _) = trained("map"), data()
    scaled = fsvi.calibration.Calibrated(
        method, fsvi.calibration.Calibration([fsvi.calibration.TemperatureScaling(2.5)]), num_samples=2, seed=3
    )
    given = traced(scaled)(x)
    torch.testing.assert_close(given["mean"], scaled.predict(x).mean, rtol=0, atol=1e-6)
    assert not torch.allclose(given["mean"], method.predict(x).mean, atol=1e-3)


class Deciding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.choice = Choice()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.choice(self.first(x)))


class Choice(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h.relu() if bool(h.sum() > 0) else h.tanh()


def test_a_graph_that_differs_from_predict_is_refused(tmp_path, monkeypatch):
    method, (x, _) = fsvi.MAP(mlp(), fsvi.Categorical()), data()
    predict = fsvi.MAP.predict
    monkeypatch.setattr(fsvi.MAP, "predict", lambda self, x, *args: predict(self, 1.1 * x, *args))
    with pytest.raises(FSVIError, match="another mean than predict"):
        method.export(tmp_path / "m.pt2", example=x)


def test_bad_input_is_refused_in_one_sentence(tmp_path, monkeypatch):
    x, _ = data()
    method = fsvi.MAP(mlp(), fsvi.Categorical())
    with pytest.raises(FSVIError, match=r"'\.pb': use \.onnx"):
        method.export(tmp_path / "m.pb")
    with pytest.raises(FSVIError, match="example=x"):
        method.export(tmp_path / "m.pt2")
    with pytest.raises(FSVIError, match="2 labels, but the model predicts 3 classes"):
        method.export(tmp_path / "m.pt2", example=x, labels=["a", "b"])
    with pytest.raises(FSVIError, match="the network cannot be exported: it decides by values"):
        fsvi.MAP(Deciding(), fsvi.Categorical()).export(tmp_path / "m.pt2", example=x)
    monkeypatch.setattr("fsvi.export.files.find_spec", lambda name: None)
    with pytest.raises(FSVIError, match=r"pip install onnx onnxscript"):
        method.export(tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []
