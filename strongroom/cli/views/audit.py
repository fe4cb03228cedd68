"""What an audit report says, in short, and where it was written."""

from __future__ import annotations

from pathlib import Path

from strongroom.canonical import JsonObject
from strongroom.cli.blocks import Block, Cell, Fields, Line, Tone
from strongroom.governance.audit_record import AuditRecord
from strongroom.governance.summary import Tone as SummaryTone
from strongroom.governance.summary import summarise

TONES: dict[SummaryTone, Tone] = {SummaryTone.GOOD: "good", SummaryTone.BAD: "bad"}


def report_document(record: AuditRecord, file: Path) -> JsonObject:
    """Return the summary as JSON, and the file."""
    summary = summarise(record)
    return {
        "report": str(file.absolute()),
        "name": str(record.name),
        "checkpoint_id": record.checkpoint_id,
        "headline": summary.headline,
        "answers": {answer.question: answer.short for answer in summary.answers},
        "alarms": list(summary.alarms),
        "missing": list(summary.missing),
    }


def report_blocks(record: AuditRecord, file: Path) -> tuple[Block, ...]:
    """Say what the page says first, and where it is."""
    summary = summarise(record)
    return (
        Line.of(f"{record.name.short}: {summary.headline}", TONES.get(summary.tone, "plain")),
        *(Line.of(alarm, "bad") for alarm in summary.alarms),
        Fields(
            tuple(
                (answer.question, Cell(answer.short, TONES.get(answer.tone, "plain")))
                for answer in summary.answers
            )
        ),
        Line.of(f"The whole report: {file.absolute()}"),
    )
