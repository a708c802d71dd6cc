"""What a diagnosis says, for people and for programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Severity = Literal["ok", "warning", "fault"]
SEVERITIES: tuple[Severity, ...] = ("fault", "warning", "ok")
"""the worst first"""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: What it is about, such as "context".
        severity: "ok", "warning" (look at it), or "fault" (the uncertainty is not to be relied on).
        sentence: What was seen, with its numbers.
        advice: The setting to change; empty where nothing has to.
        values: The numbers by name.
    """

    name: str
    severity: Severity
    sentence: str
    advice: str = ""
    values: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        advice = f" {self.advice}" if self.advice else ""
        return f"{self.severity:<7}  {self.name}: {self.sentence}{advice}"


@dataclass(frozen=True)
class Diagnosis:
    """All findings, in the order in which they were looked at."""

    findings: tuple[Finding, ...]

    @property
    def faults(self) -> list[Finding]:
        """What makes the uncertainty useless."""
        return [finding for finding in self.findings if finding.severity == "fault"]

    @property
    def summary(self) -> str:
        """How many findings of each kind there are, in one line."""
        counts = Counter(finding.severity for finding in self.findings)
        return f"{_count(counts['fault'], 'fault')}, {_count(counts['warning'], 'warning')}, {counts['ok']} ok"

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __getitem__(self, name: str) -> Finding:
        """The finding called `name`."""
        return next(finding for finding in self.findings if finding.name == name)

    def __str__(self) -> str:
        """For a terminal: the worst first."""
        worst_first = sorted(self.findings, key=lambda finding: SEVERITIES.index(finding.severity))
        return "\n".join([self.summary, *map(str, worst_first)])

    def to_dict(self) -> dict[str, Any]:
        """Plain values: what a file, or a section of a page, needs."""
        return {"summary": self.summary, "findings": [asdict(finding) for finding in self.findings]}

    def to_json(self) -> str:
        """The same as JSON."""
        return json.dumps(self.to_dict(), indent=1)


def _count(num: int, noun: str) -> str:
    return f"{num} {noun}{'' if num == 1 else 's'}"
