"""Build fsvi, check it, and try the wheel with the newest torch, the sdist with the oldest, in fresh environments."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = "torch==2.6.*"
VERSIONS = ("3.10", "3.11", "3.12", "3.13")
TRIAL = """
import torch, fsvi
torch.manual_seed(0)
x, y = fsvi.data.two_moons(100, noise=0.1, seed=0)
method = fsvi.FSVI(fsvi.networks.mlp(2, (20,), 2), fsvi.Categorical(), fsvi.contexts.Uniform(widen=1.0))
fsvi.fit(method, (x, y), epochs=100, seed=0)
method.save("moons.fsvi")
p, q = method.predict(x), fsvi.load("moons.fsvi").predict(x)
assert torch.equal(p.mean, q.mean), "a loaded method predicts something else"
assert fsvi.metrics.accuracy(p, y) > 0.7, "nothing was learned"
model = fsvi.FSVIClassifier(epochs=5, random_state=0).fit(x.numpy(), y.numpy())
assert model.predict_proba(x.numpy()).shape == (100, 2)
print("fsvi", fsvi.__version__, "torch", torch.__version__)
"""


def interpreter(version: str) -> str | None:
    """A Python of this version: of pyenv, whose commands on the path may refuse, or on the path."""
    home = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [str(path) for path in sorted(home.glob(f"versions/{version}.*/bin/python"))]
    return found[-1] if found else shutil.which(f"python{version}")


def run(*command: str | Path, cwd: str | Path = ROOT) -> str:
    """Output of a command, which must succeed."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout.strip()


def attempt(python: str, package: Path, torch: str) -> str:
    """Install the package with a torch into a fresh environment, and train, save, load and predict there."""
    with tempfile.TemporaryDirectory() as folder:
        run(python, "-m", "venv", f"{folder}/env")
        inside = f"{folder}/env/bin/python"
        run(inside, "-m", "pip", "install", "-q", package, torch)
        run(f"{folder}/env/bin/fsvi", "--version", cwd=folder)
        return run(inside, "-I", "-c", TRIAL, cwd=folder).splitlines()[-1]


def main() -> None:
    """Everything, for all Python versions, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", default=VERSIONS)
    options = parser.parse_args()
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", ROOT / "dist")
    built = sorted((ROOT / "dist").iterdir())
    print(run(sys.executable, "-m", "twine", "check", "--strict", *built), flush=True)
    sdist, wheel = sorted(built, key=lambda path: path.suffix)
    for version in options.versions:
        python = interpreter(version)
        if python is None:
            print(f"{version}: not installed", flush=True)
            continue
        trials = [(wheel, "torch"), (sdist, OLDEST)]
        for package, torch in trials:
            print(f"{version} {package.name} {torch}: {attempt(python, package, torch)}", flush=True)


if __name__ == "__main__":
    main()
