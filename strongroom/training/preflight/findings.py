"""A finding, and what a check is given to find one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from strongroom.canonical import JsonObject
from strongroom.parsing import to_json
from strongroom.training.config import RunConfig
from strongroom.training.preflight.estimates import Estimates
from strongroom.training.preflight.facts import Facts
from strongroom.training.preflight.rules import RULES
from strongroom.training.reporting import ReportKind

Severity = Literal["stop", "warn"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What one check found.

    Attributes:
        check: its name in `rules`.
        severity: `stop` for what cannot work or loses state, `warn` for what costs time or money.
        saw: what there is, with its numbers.
        why: why it matters.
        mend: what to change.
        source: where that is known from.
    """

    check: str
    severity: Severity
    saw: str
    why: str
    mend: str
    source: str

    @property
    def message(self) -> str:
        """What was seen and how to mend it, in one line."""
        return f"{self.saw}; {self.mend}"

    def event(self, *, stops: bool) -> JsonObject:
        """Return the event that tells of it; see `training.reporting`."""
        return {
            "kind": ReportKind.FINDING,
            "check": self.check,
            "severity": "stop" if stops else "warn",
            "message": self.message,
        }

    def to_json(self) -> JsonObject:
        """Return it as JSON."""
        return to_json(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """What is judged: a configuration, the facts, the numbers to judge by, what follows."""

    config: RunConfig
    facts: Facts
    numbers: Mapping[str, float]
    estimates: Estimates


Check = Callable[[Case], Iterator[Finding]]


def finding(check: str, severity: Severity, *, saw: str, mend: str) -> Finding:
    """Return a finding of the check of that name."""
    rule = RULES[check]
    return Finding(
        check=check, severity=severity, saw=saw, why=rule.why, mend=mend, source=rule.source
    )
