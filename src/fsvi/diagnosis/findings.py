"""What a check finds, and the verdict over all checks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Level = Literal["no", "care", "ok"]
_VERDICTS: dict[Level, str] = {"no": "no", "care": "care", "ok": "trust"}
"""The worst one first."""
_LISTED = 3


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Args:
        name: The topic, such as "calibration".
        level: "ok", "care" (worth a look), or "no" (a reason not to rely on the model).
        sentence: What was measured.
        advice: What to change; empty if nothing.
        numbers: The measured numbers by name.
    """

    name: str
    level: Level
    sentence: str
    advice: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.level:<4}  {self.name}: {self.sentence} {self.advice}".rstrip()


@dataclass(frozen=True)
class Diagnosis:
    """All findings, in the order of the checks.

    Args:
        findings: The findings.
        metrics: What was measured on the data, by name.
    """

    findings: tuple[Finding, ...]
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """One of "trust", "care" and "no": that of the worst finding."""
        return _VERDICTS[self.worst_first[0].level] if self.findings else "trust"

    @property
    def headline(self) -> str:
        """The verdict in one sentence, with the names of the findings that led to it."""
        names = ", ".join(finding.name for finding in self.findings if _VERDICTS[finding.level] == self.verdict)
        return {
            "trust": "You can trust this model for data like those it was checked on.",
            "care": f"Use this model with care; see {names}.",
            "no": f"Do not rely on this model; see {names}.",
        }[self.verdict]

    @property
    def worst_first(self) -> list[Finding]:
        """The findings, those that led to the verdict at the top."""
        return sorted(self.findings, key=lambda finding: list(_VERDICTS).index(finding.level))

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __getitem__(self, name: str) -> Finding:
        return next(finding for finding in self.findings if finding.name == name)

    def __str__(self) -> str:
        """Text for a terminal, worst findings first."""
        return "\n".join([self.headline, *map(str, self.worst_first)])

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a file or a page."""
        found = [asdict(finding) for finding in self.findings]
        return {"verdict": self.verdict, "headline": self.headline, "findings": found, "metrics": dict(self.metrics)}

    def to_json(self) -> str:
        """The verdict, findings and metrics as JSON."""
        return json.dumps(self.to_dict(), indent=1)


def shown(value: Any) -> str:
    """A value for people: 16,740 and not 1.674e+04."""
    if not isinstance(value, float):  # NumPy's are floats, too
        return str(value)
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"


def listed(names: Sequence[str]) -> str:
    """How many columns, and the first of them by name."""
    return f"{len(names)} column{'s' * (len(names) > 1)} ({first([repr(name) for name in names])})"


def first(words: Sequence[str]) -> str:
    """The first of them, and how many more."""
    more = f" and {len(words) - _LISTED} more" if len(words) > _LISTED else ""
    return ", ".join(words[:_LISTED]) + more
