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
:root { --page: #f4f6f8; --card: #fff; --text: #1f2933; --soft: #5b6775; --line: #e1e6ec;
  --ok: #1a7f4b; --care: #b25a00; --no: #b3261e }
@media (prefers-color-scheme: dark) { :root { --page: #0d1014; --card: #15191f; --text: #e6eaf0; --soft: #9aa6b5;
  --line: #2a313b; --ok: #5cc98d; --care: #f0a04b; --no: #ff8a80 } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 60rem; padding: 1rem .75rem 3rem; background: var(--page); color: var(--text);
  font: 1.05rem/1.55 system-ui, sans-serif; overflow-wrap: anywhere }
section { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 1.2rem;
  margin-bottom: 1.2rem }
h1 { font-size: clamp(1.4rem, 4vw, 2rem); line-height: 1.2; margin: 0 0 1rem; text-wrap: balance }
h2 { font-size: 1.2rem; margin: 0 0 .6rem }
section { border-left: 8px solid var(--tone, var(--card)) }
.trust { --tone: var(--ok) } .care { --tone: var(--care) } .no { --tone: var(--no) }
ul { list-style: none; padding: 0; margin: 0 }
li { display: grid; grid-template-columns: 1.8rem 1fr; margin-bottom: .7rem }
li > b { color: var(--tone) }
small, th, footer { color: var(--soft) }
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
