"""`strongroom ledger`: check the ledger, read it, prove what it says."""

from __future__ import annotations

from typing import Annotated

import typer

from strongroom.cli.blocks import Raw
from strongroom.cli.output import Reply
from strongroom.cli.settings import Settings


def verify(settings: Settings) -> Reply:
    """Check every entry, signature and byte of the ledger."""
    from strongroom.cli.views.ledger import report_blocks

    report = settings.custody().ledger().verify()
    return Reply(document={"ledger": report}, blocks=report_blocks(report))


def tail(
    settings: Settings,
    *,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=1, metavar="N", help="How many, from the end.")
    ] = 20,
) -> Reply:
    """Show the newest entries of the ledger, oldest of them first."""
    from strongroom.cli.views.ledger import event_document, event_table

    events = list(enumerate(settings.custody().ledger().events()))[-lines:]
    return Reply(
        document={"events": [event_document(index, event) for index, event in events]},
        blocks=(event_table(events),),
    )


def prove(
    settings: Settings,
    *,
    index: Annotated[int, typer.Argument(metavar="INDEX", help="The entry, counted from 0.")],
) -> Reply:
    """Print a proof that an entry stands in the ledger; it can be checked without the store."""
    from strongroom.cli.views.ledger import event_document

    custody = settings.custody()
    ledger = custody.ledger()
    proof = ledger.prove(index)
    event = proof.check(ledger.origin, custody.keys.keyring())
    return Reply(
        document={
            "origin": ledger.origin,
            "event": event_document(index, event),
            "proof": proof.to_text(),
        },
        blocks=(Raw(proof.to_text()),),
    )
