"""`strongroom ls`, `show` and `lineage`: what stands in a store. They change nothing."""

from __future__ import annotations

from typing import Annotated

import typer

from strongroom.cli.arguments import CheckpointArgument
from strongroom.cli.output import Reply
from strongroom.cli.settings import Settings
from strongroom.clock import now_utc
from strongroom.errors import UnknownNameError
from strongroom.names import RunKey


def ls(
    settings: Settings,
    *,
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Only the checkpoints of this run.")
    ] = None,
) -> Reply:
    """List checkpoints: size, loss, and how far each has come."""
    from strongroom.cli.views.listing import listing_blocks, listing_document
    from strongroom.custody.listing import list_store
    from strongroom.custody.resolve import check_run

    custody = settings.custody()
    key = None if run is None else RunKey.parse(run)
    if key is not None:
        check_run(custody, key)
    listing = list_store(custody, key)
    where = custody.store.url if key is None else f"run {key}"
    return Reply(
        document={"store": custody.store.url, **listing_document(listing)},
        blocks=listing_blocks(listing, now=now_utc(), empty=f"{where} has no checkpoints yet"),
    )


def show(settings: Settings, *, checkpoint: CheckpointArgument) -> Reply:
    """Show all that is known of one checkpoint."""
    from strongroom.cli.views.dossier import dossier_blocks, dossier_document
    from strongroom.custody.audit import audit_checkpoint
    from strongroom.custody.resolve import resolve_record

    custody = settings.custody()
    record = audit_checkpoint(custody, resolve_record(custody, checkpoint).checkpoint_id)
    return Reply(document=dossier_document(record), blocks=dossier_blocks(record))


def lineage(settings: Settings, *, checkpoint: CheckpointArgument) -> Reply:
    """Draw what a checkpoint came from, and what came from it."""
    from strongroom.cli.views.lineage import lineage_document, lineage_tree
    from strongroom.custody.audit import audit_checkpoint
    from strongroom.custody.resolve import resolve_record

    custody = settings.custody()
    record = audit_checkpoint(custody, resolve_record(custody, checkpoint).checkpoint_id)
    if record.lineage is None:
        raise UnknownNameError(
            f"run {record.name.run}: the ledger does not say what it was made from"
        )
    return Reply(document=lineage_document(record.lineage), blocks=(lineage_tree(record.lineage),))
