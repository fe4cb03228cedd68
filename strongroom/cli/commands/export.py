"""`strongroom export`: a copy of a checkpoint that needs neither its store nor strongroom."""

from __future__ import annotations

from typing import Annotated

import typer

from strongroom.cli.arguments import CheckpointArgument
from strongroom.cli.output import Reply
from strongroom.cli.progress import activity
from strongroom.cli.settings import Settings


def export(
    settings: Settings,
    *,
    checkpoint: CheckpointArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="FORMAT", help="dcp: what torch.distributed.checkpoint reads."
        ),
    ],
    out: Annotated[
        str,
        typer.Option(
            "--out",
            metavar="URL",
            help="An empty place for the copy: a folder, file:///FOLDER or s3://BUCKET/PREFIX.",
        ),
    ],
) -> Reply:
    """Copy a checkpoint out of the store, checking every byte on the way.

    A checkpoint that borrows from others becomes whole: it gets another id, and means the same.
    The ledger records that a copy left.
    """
    from strongroom.cli.views.export import export_blocks, export_document
    from strongroom.custody.export import export_checkpoint
    from strongroom.custody.resolve import resolve

    custody = settings.custody()
    committed = resolve(custody, checkpoint)
    with activity(f"exporting {committed.name.short}"):
        copy = export_checkpoint(custody, committed, to=to, destination=out)
    return Reply(
        document=export_document(committed, copy, to=to, out=out),
        blocks=tuple(export_blocks(committed, copy, to=to, out=out)),
    )
