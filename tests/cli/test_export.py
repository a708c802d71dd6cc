import json

import torch

import fsvi
from scenarios import dense


def test_export_writes_the_graph_of_a_saved_method(run, tmp_path):
    torch.manual_seed(0)
    x, y = torch.randn(8, 2), torch.arange(8) % 2
    method = fsvi.MFVI(dense(), fsvi.Categorical())
    fsvi.fit(method, (x, y), epochs=1, progress=False)
    model, out = tmp_path / "m.fsvi", tmp_path / "m.pt2"
    method.save(model)
    code, said, err = run("export", str(model), str(out), "--draws", "3", "--labels", "no, yes")
    assert (code, said) == (0, "") and err.startswith(f"Wrote {out}")
    extra = {"fsvi.json": ""}
    program = torch.export.load(out, extra_files=extra)
    torch.testing.assert_close(program.module()(x)["mean"], method.predict(x, 3).mean, rtol=0, atol=1e-6)
    assert json.loads(json.loads(extra["fsvi.json"])["labels"]) == ["no", "yes"]


def test_a_wrong_ending_is_one_sentence(run, tmp_path):
    model = tmp_path / "m.fsvi"
    fsvi.MAP(dense(), fsvi.Categorical()).save(model)
    code, said, err = run("export", str(model), str(tmp_path / "m.tflite"))
    assert (code, said) == (1, "") and ".onnx" in err and len(err.strip().splitlines()) == 1
