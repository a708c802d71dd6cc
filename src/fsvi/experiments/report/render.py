"""HTML pages and Markdown from templates; a page is one file that needs nothing else."""

from __future__ import annotations

import base64
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape


def render(template: str, **values: Any) -> str:
    """The template with its values; text in HTML is escaped."""
    environment = Environment(
        loader=PackageLoader("fsvi.experiments.report", "templates"),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["embed"] = embed
    return environment.get_template(template).render(values)


def embed(png: bytes) -> str:
    """A picture as an address that holds it."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")
