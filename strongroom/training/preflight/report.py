"""Make every check, and keep what was found."""

from __future__ import annotations

from dataclasses import dataclass

from strongroom.canonical import JsonObject
from strongroom.errors import PreflightError
from strongroom.parsing import to_json
from strongroom.training.config import RunConfig
from strongroom.training.preflight.checks.registry import CHECKS
from strongroom.training.preflight.estimates import Estimates, estimate
from strongroom.training.preflight.facts import Facts
from strongroom.training.preflight.findings import Case, Finding
from strongroom.training.preflight.numbers import values


@dataclass(frozen=True, kw_only=True, slots=True)
class PreflightReport:
    """What was found, and what it was found from.

    Attributes:
        findings: in the order of the rules.
        ignored: checks whose finding does not stop, as the configuration says.
    """

    findings: tuple[Finding, ...]
    ignored: frozenset[str]
    facts: Facts
    estimates: Estimates

    @property
    def stopping(self) -> tuple[Finding, ...]:
        """The findings that stop a launch."""
        return tuple(found for found in self.findings if self.stops(found))

    def stops(self, found: Finding) -> bool:
        """Return whether a finding stops a launch."""
        return found.severity == "stop" and found.check not in self.ignored

    def raise_if_stopped(self) -> None:
        """Return if nothing stops a launch.

        Raises:
            PreflightError: something does; it carries all findings that do.
        """
        if self.stopping:
            raise PreflightError([found.to_json() for found in self.stopping])

    def events(self) -> list[JsonObject]:
        """Return one event for each finding."""
        return [found.event(stops=self.stops(found)) for found in self.findings]

    def to_json(self) -> JsonObject:
        """Return it as JSON."""
        return {
            "findings": [
                {**found.to_json(), "stops": self.stops(found)} for found in self.findings
            ],
            "estimates": to_json(self.estimates),
        }


def preflight(config: RunConfig, facts: Facts) -> PreflightReport:
    """Return everything the checks find in a configuration and the facts. Pure."""
    numbers = values(config.preflight.numbers)
    case = Case(
        config=config,
        facts=facts,
        numbers=numbers,
        estimates=estimate(config, facts, numbers),
    )
    return PreflightReport(
        findings=tuple(found for check in CHECKS.values() for found in check(case)),
        ignored=frozenset(config.preflight.ignore),
        facts=facts,
        estimates=case.estimates,
    )
