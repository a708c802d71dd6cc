"""The result of a diagnosis, for people and for programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Severity = Literal["ok", "warning", "fault"]
SEVERITIES: tuple[Severity, ...] = ("fault", "warning", "ok")
"""worst first"""


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        name: The topic, such as "context".
        severity: "ok", "warning" (worth a look), or "fault" (do not rely on the uncertainty).
        sentence: The observation, with its numbers.
        advice: The setting to change; empty if none.
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
    """All findings, in the order of the checks."""

    findings: tuple[Finding, ...]

    @property
    def faults(self) -> list[Finding]:
        """The findings that make the uncertainty unreliable."""
        return [finding for finding in self.findings if finding.severity == "fault"]

    @property
    def summary(self) -> str:
        """The number of findings of each severity, in one line."""
        counts = Counter(finding.severity for finding in self.findings)
        return f"{_count(counts['fault'], 'fault')}, {_count(counts['warning'], 'warning')}, {counts['ok']} ok"

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __getitem__(self, name: str) -> Finding:
        """The finding called `name`."""
        return next(finding for finding in self.findings if finding.name == name)

    def __str__(self) -> str:
        """Text for a terminal, worst findings first."""
        worst_first = sorted(self.findings, key=lambda finding: SEVERITIES.index(finding.severity))
        return "\n".join([self.summary, *map(str, worst_first)])

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a file or a page."""
        return {"summary": self.summary, "findings": [asdict(finding) for finding in self.findings]}

    def to_json(self) -> str:
        """The findings as JSON."""
        return json.dumps(self.to_dict(), indent=1)


def _count(num: int, noun: str) -> str:
    return f"{num} {noun}{'' if num == 1 else 's'}"
