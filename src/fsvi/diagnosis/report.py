"""A diagnosis as one HTML file without dependencies."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from fsvi.diagnosis.findings import Diagnosis, Finding, shown
from fsvi.serialization import write_bytes

_MARKS = {"ok": "✓", "care": "!", "no": "✗"}
_STYLE = """
:root { color-scheme: light dark; --line: #8884 }
body { margin: 0 auto; max-width: 60rem; padding: 1rem; overflow-wrap: anywhere;
  font: 1.05rem/1.55 system-ui, sans-serif }
section { border: 1px solid var(--line); border-left: 8px solid var(--tone, var(--line)); border-radius: 12px;
  padding: 1.2rem; margin-bottom: 1.2rem }
h1 { font-size: clamp(1.4rem, 4vw, 2rem); line-height: 1.2; margin: 0 0 1rem }
h2 { font-size: 1.2rem; margin: 0 0 .6rem }
.trust { --tone: #24905a } .care { --tone: #c46a00 } .no { --tone: #d0453c }
ul { list-style: none; padding: 0; margin: 0 }
li { display: grid; grid-template-columns: 1.8rem 1fr; margin-bottom: .7rem }
li > b { color: var(--tone) }
small, th { opacity: .75 }
table { border-collapse: collapse; width: 100%; font-size: .95rem }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top }
"""


def write_report(path: Path, diagnosis: Diagnosis, title: str, facts: Mapping[str, Any]) -> None:
    """Write the page: the verdict with its findings, the metrics, and where the model comes from."""
    metrics = {name: shown(value) for name, value in diagnosis.metrics.items()}
    known = {name: value for name, value in facts.items() if value not in (None, "")}
    body = [
        f'<section class="{diagnosis.verdict}"><h1>{escape(diagnosis.headline)}</h1><ul>',
        *map(_item, diagnosis.worst_first),
        "</ul></section>",
        _section("Measured on held-out rows", metrics),
        _section("About this model", known),
    ]
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><p>{escape(title)}</p>{''.join(body)}</body></html>"
    )
    write_bytes(path, page.encode(errors="backslashreplace"))  # names of files need not be text


def _item(finding: Finding) -> str:
    words = f"{finding.sentence} {finding.advice}".strip()
    name = finding.name.replace("_", " ").capitalize()
    mark, tone = _MARKS[finding.level], "trust" if finding.level == "ok" else finding.level
    return f'<li class="{tone}"><b>{mark}</b><div>{escape(name)}<br><small>{escape(words)}</small></div></li>'


def _section(title: str, values: Mapping[str, Any]) -> str:
    rows = (f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in values.items())
    return f"<section><h2>{escape(title)}</h2><table>{''.join(rows)}</table></section>"
