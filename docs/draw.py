"""Run the code of the pages and the gallery, and save their pictures: `python docs/draw.py [name ...]`."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).resolve().parent
PAGES = [DOCS.parent / "README.md"]
PAGES += sorted(page for page in DOCS.rglob("*.md") if page.parent.name not in ("api", "gallery"))
SCRIPTS = sorted((DOCS / "gallery").glob("*.py"))


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and code of the blocks of Python and commands on a page, in order."""
    return re.findall(r"^```(python|console)\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def pictures(page: Path) -> list[str]:
    """File names of the figures that a page draws."""
    return re.findall(r"savefig\(\"(\w+\.png)\"", page.read_text("utf-8"))


def run(page: Path) -> None:
    """Run a page in the current folder: Python in one namespace, and the lines that start with `fsvi`."""
    import matplotlib

    matplotlib.use("Agg")
    names = {"__name__": "__main__"}
    for language, code in blocks(page):
        if language == "python":
            exec(compile(code, str(page), "exec"), names)
            continue
        for line in code.replace("\\\n", " ").splitlines():
            if line.startswith("fsvi "):
                subprocess.run([sys.executable, "-m", *shlex.split(line, comments=True)], check=True)


def draw(source: Path) -> None:
    """Run a page or a script in an empty folder, and put its pictures next to it."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        if source in SCRIPTS:
            subprocess.run([sys.executable, str(source)], check=True, env={**os.environ, "MPLBACKEND": "Agg"})
        else:
            run(source)
        for picture in Path(folder).glob("*.png"):
            shutil.copy(picture, source.parent)
        os.chdir(DOCS)


if __name__ == "__main__":
    for source in [*PAGES, *SCRIPTS]:
        if (source in SCRIPTS or pictures(source)) and (not sys.argv[1:] or source.stem in sys.argv[1:]):
            print(f"— {source.stem}")
            draw(source)
