"""The gallery's pages, made from the scripts in docs/gallery when the site is built."""

import ast
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

GALLERY = Path(__file__).parent / "gallery"
ORDER = [
    "two_moons",
    "regression_gap",
    "kernels",
    "table_leaves_data",
    "referral",
    "conformal_sets",
    "pretrained_images",
    "text",
    "segmentation",
    "continual",
    "ensembles",
    "methods",
    "likelihoods",
    "contexts",
    "reliability",
    "fsvi_in_one_file",
]


def describe(name: str) -> tuple[str, str]:
    """Title and text of an example."""
    text = ast.get_docstring(ast.parse((GALLERY / f"{name}.py").read_text("utf-8"))) or name
    title, _, rest = text.partition("\n")
    return title, " ".join(rest.split())


def page(name: str) -> str:
    """Markdown of an example: text, picture, code."""
    title, text = describe(name)
    code = (GALLERY / f"{name}.py").read_text("utf-8").split('"""\n\n', 1)[1]
    return f'# {title}\n\n{text}\n\n![{title}]({name}.png)\n\n```python title="docs/gallery/{name}.py"\n{code}```\n'


def index() -> str:
    """Markdown of the overview."""
    entries = []
    for name in ORDER:
        title, text = describe(name)
        entries.append(f"-   [![{title}]({name}.png)]({name}.md)\n\n    **[{title}]({name}.md)**\n\n    {text}\n")
    return (
        "# Gallery\n\nEach example is one script that draws its own picture; `make gallery` runs them all.\n\n"
        '<div class="grid cards" markdown>\n\n' + "\n".join(entries) + "\n</div>\n"
    )


def examples_of(name: str) -> list[str]:
    """The examples whose code has a public name, such as `fsvi.FSVI`, or names of a module, such as `fsvi.contexts`."""
    code = {example: (GALLERY / f"{example}.py").read_text("utf-8") for example in ORDER}
    last = name.rsplit(".", 1)[-1]
    return [example for example in ORDER if re.search(rf"\b{last}[(.]|import .*\b{last}\b", code[example])]


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Adds links to the gallery below the names on the API's pages."""
    if not page.file.src_uri.startswith("api/"):
        return markdown

    def with_links(found: re.Match[str]) -> str:
        links = [f"[{describe(example)[0]}](../gallery/{example}.md)" for example in examples_of(found[1])]
        return f"{found[0]}\n**In the gallery:** {' · '.join(links)}\n" if links else found[0]

    return re.sub(r"^::: (\S+)\n(?:    .*\n)*", with_links, markdown, flags=re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages."""
    pages = {"index": index(), **{name: page(name) for name in ORDER}}
    for name, content in pages.items():
        files.append(File.generated(config, f"gallery/{name}.md", content=content))
    return files
