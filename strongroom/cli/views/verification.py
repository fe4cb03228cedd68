"""How far up the ladder checkpoints got, and what does not hold, with its place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from strongroom.canonical import JsonObject
from strongroom.cli.blocks import Block, Line
from strongroom.errors import IntegrityError, StrongroomError, VerificationError

if TYPE_CHECKING:
    from strongroom.verification.ladder import RungResult, VerificationReport


def report_document(report: VerificationReport) -> JsonObject:
    """Return the report as JSON."""
    return {**report.to_json(), "quarantined": not report.passed}


def report_blocks(report: VerificationReport) -> Iterator[Block]:
    """Say what each rung found, and what became of the checkpoint."""
    if report.passed:
        rungs = ", ".join(_in_words(result) for result in report.rungs)
        yield Line.of(f"{report.name.short}: holds ({rungs})", "good")
        return
    yield Line.of(f"{report.name.short}: does not hold", "bad")
    for result in report.rungs:
        yield Line.of(f"  {_in_words(result)}: {'holds' if result.passed else 'does not hold'}")
        for finding in result.findings:
            yield Line.of(f"    - {finding}", "bad")
    yield Line.of("  It is quarantined: it will not be resumed from, evaluated or promoted.", "bad")


def failure_of(reports: Sequence[VerificationReport]) -> StrongroomError | None:
    """Return the error the command ends with: the first damage, else the first other fault."""
    failures = [failure for report in reports if (failure := _failure(report)) is not None]
    damaged = [failure for failure in failures if isinstance(failure, IntegrityError)]
    return next(iter(damaged + failures), None)


def _failure(report: VerificationReport) -> StrongroomError | None:
    try:
        report.raise_for_findings()
    except (IntegrityError, VerificationError) as error:
        return error
    return None


def _in_words(result: RungResult) -> str:
    return f"rung {int(result.rung)} {result.rung.name.lower()} {result.seconds:.2f} s"
