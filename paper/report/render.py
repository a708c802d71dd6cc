"""HTML pages and Markdown from templates; a page is a single file without dependencies."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, PackageLoader, StrictUndefined, select_autoescape


def render(template: str, folder: Path | None = None, **values: Any) -> str:
    """The template filled with values; text in HTML is escaped.

    Args:
        template: The template's name.
        folder: A folder with templates of other pages, which may use those of the report.
        values: What the template shows, by name.
    """
    own = PackageLoader("paper.report", "templates")
    environment = Environment(
        loader=own if folder is None else ChoiceLoader([own, FileSystemLoader(folder)]),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["embed"] = embed
    return environment.get_template(template).render(values)


def embed(image: bytes) -> str:
    """A PNG or SVG image as a data URL."""
    kind = "png" if image.startswith(b"\x89PNG") else "svg+xml"
    return f"data:image/{kind};base64," + base64.b64encode(image).decode("ascii")
