"""`strongroom audit`: explain a checkpoint to a stranger."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from strongroom.cli.arguments import CheckpointArgument
from strongroom.cli.output import Reply
from strongroom.cli.settings import Settings


def report(
    settings: Settings,
    *,
    checkpoint: CheckpointArgument,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="Where to write it; RUN-step-N.html here if not given."
        ),
    ] = None,
) -> Reply:
    """Write one self-contained HTML page about a checkpoint: print it, or send it."""
    from strongroom.cli.views.audit import report_blocks, report_document
    from strongroom.custody.audit import write_report
    from strongroom.custody.resolve import resolve_record

    custody = settings.custody()
    record = resolve_record(custody, checkpoint)
    file = out or Path(f"{record.name.run}-step-{record.name.step.number}.html")
    audit = write_report(custody, record.checkpoint_id, file)
    return Reply(document=report_document(audit, file), blocks=report_blocks(audit, file))
