"""Run the code of the tutorials and save their figures: `python docs/draw.py [page ...]`."""

import os
import re
import sys
from pathlib import Path

PAGES = sorted((Path(__file__).parent / "tutorials").glob("*.md"))


def code(page: Path) -> str:
    """All Python blocks of a page, in order."""
    return "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL))


def pictures(page: Path) -> list[str]:
    """File names of the figures on a page."""
    return re.findall(r"\]\((\w+\.png)\)", page.read_text("utf-8"))


def run(page: Path) -> None:
    """Run a page's code in the current folder."""
    import matplotlib

    matplotlib.use("Agg")
    exec(compile(code(page), str(page), "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    os.chdir(Path(__file__).parent / "tutorials")
    for page in PAGES:
        if not sys.argv[1:] or page.stem in sys.argv[1:]:
            print(f"— {page.stem}")
            run(page)
