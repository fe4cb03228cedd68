"""What a checkpoint scored, beside its base model, and what the run's rules say of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strongroom.canonical import JsonObject
from strongroom.cli.blocks import Block, Cell, Column, Line, Table
from strongroom.governance.wording import figure
from strongroom.names import CheckpointName

if TYPE_CHECKING:
    from strongroom.custody.evaluate import Evaluation


def evaluation_document(evaluation: Evaluation, name: CheckpointName) -> JsonObject:
    """Return report and verdict as JSON."""
    return {
        "checkpoint": str(name),
        "evaluation": evaluation.report.to_json(),
        "passed": evaluation.verdict.passed,
        "reasons": list(evaluation.verdict.reasons),
    }


def evaluation_blocks(evaluation: Evaluation, name: CheckpointName) -> tuple[Block, ...]:
    """Say what was measured, and the verdict rule by rule."""
    report, verdict = evaluation.report, evaluation.verdict
    rows = (
        ("held-out loss", report.loss, report.base_loss),
        ("bits per byte", report.bits_per_byte, report.base_bits_per_byte),
    )
    return (
        Line.of(
            f"{name.short}: {'passed' if verdict.passed else 'failed'} on {report.num_rows} rows, "
            f"{report.num_tokens:,} tokens",
            "good" if verdict.passed else "bad",
        ),
        Table(
            columns=(
                Column(title="measure"),
                Column(title="checkpoint", right=True),
                Column(title="base model", right=True),
                Column(title="change", right=True),
            ),
            rows=tuple(
                (
                    Cell(measure),
                    Cell(figure(ours)),
                    Cell(figure(base)),
                    Cell(f"{ours - base:+.4f}", "good" if ours < base else "bad"),
                )
                for measure, ours, base in rows
            ),
            empty="",
        ),
        *(Line.of(f"  - {reason}") for reason in verdict.reasons),
    )
