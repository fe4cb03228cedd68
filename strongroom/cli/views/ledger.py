"""Ledger entries as a table and as JSON; what a verification of the ledger found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from strongroom.canonical import JsonObject
from strongroom.cli.blocks import NOTHING, Block, Cell, Column, Fields, Line, Table
from strongroom.cli.views.phrases import facts_in_words, key_in_words, to_second

if TYPE_CHECKING:
    from strongroom.ledger.events import Event
    from strongroom.ledger.verifier import LedgerReport


def event_table(events: Sequence[tuple[int, Event]]) -> Table:
    """Return one row for each event, given with its index."""
    return Table(
        columns=(
            Column(title="entry", right=True),
            Column(title="time"),
            Column(title="event"),
            Column(title="by"),
            Column(title="facts", wraps=True),
        ),
        rows=tuple(
            (
                Cell(str(index)),
                Cell(to_second(event.time)),
                Cell(str(event.kind), "bad" if _is_bad(event) else "plain"),
                actor_cell(event.actor),
                Cell(facts_in_words(_told(event))),
            )
            for index, event in events
        ),
        empty="The ledger has no events yet.",
    )


def actor_cell(actor: str) -> Cell:
    """Name who acted; a service, by the first digits of its key, in the background."""
    kind, _, name = actor.partition(":")
    return Cell(name) if kind == "person" else Cell(f"{kind} {key_in_words(name)}", "faint")


def event_document(index: int, event: Event) -> JsonObject:
    """Return one event with its index."""
    return {"index": index, **event.to_json()}


def report_blocks(report: LedgerReport) -> tuple[Block, ...]:
    """Say what a full verification of the ledger found true."""
    ignored = (Line.of(f"ignored: {key}: no part of a ledger", "faint") for key in report.ignored)
    unfinished = (
        [Line.of("one entry waits for its tree head; the next append finishes it", "faint")]
        if report.num_unfinished
        else []
    )
    return (
        Line.of("The ledger is whole: every byte of it agrees with its signed tree head.", "good"),
        Fields(
            (
                ("events", Cell(f"{report.size:,}")),
                ("root", Cell(str(report.root))),
                ("signed by", NOTHING if report.signed_by is None else Cell(report.signed_by)),
                ("files", Cell(f"{report.num_files:,}")),
            )
        ),
        *unfinished,
        *ignored,
    )


def _told(event: Event) -> JsonObject:
    """Return the event's facts, the checkpoint it is about first."""
    return {"checkpoint": event.checkpoint and event.checkpoint.short, **event.facts}


def _is_bad(event: Event) -> bool:
    bad = event.kind in {"checkpoint.quarantined", "checkpoint.rejected", "promotion.refused"}
    return bad or event.facts.get("passed") is False
