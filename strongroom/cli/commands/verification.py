"""`strongroom verify`: climb the ladder, write the record, quarantine what fails."""

from __future__ import annotations

from typing import Annotated

import typer

from strongroom.cli.arguments import CheckpointsArgument
from strongroom.cli.output import Reply
from strongroom.cli.progress import activity
from strongroom.cli.settings import Settings

HIGHEST_RUNG = 3


def verify(
    settings: Settings,
    *,
    checkpoints: CheckpointsArgument,
    rung: Annotated[
        int,
        typer.Option(
            "--rung",
            min=1,
            max=HIGHEST_RUNG,
            metavar="N",
            help="Climb up to 1 (bytes), 2 (structure) or 3 (load).",
        ),
    ] = HIGHEST_RUNG,
) -> Reply:
    """Prove that checkpoints hold; quarantine those that do not.

    Each is read again, compared with what was saved, and loaded in a fresh model. The result is
    signed and recorded. Ends with 20 for changed bytes, 21 for any other fault.
    """
    from strongroom.cli.views.verification import failure_of, report_blocks, report_document
    from strongroom.custody.resolve import resolve_name
    from strongroom.custody.verify import verify_checkpoint
    from strongroom.verification.ladder import Rung

    custody = settings.custody()
    # All names first: a typing mistake in the last must not cost the time of the others.
    names = [resolve_name(custody, text) for text in checkpoints]
    reports = []
    for name in names:
        with activity(f"verifying {name.short}"):
            reports.append(verify_checkpoint(custody, name, up_to=Rung(rung)))
    return Reply(
        document={"checkpoints": [report_document(report) for report in reports]},
        blocks=tuple(block for report in reports for block in report_blocks(report)),
        failure=failure_of(reports),
    )
