"""What a training did: its checkpoints, and what to do with them next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from strongroom.canonical import JsonObject
from strongroom.cli.blocks import Block, Heading, Line
from strongroom.cli.views.listing import listing_blocks, listing_document
from strongroom.names import RunKey

if TYPE_CHECKING:
    from strongroom.custody.listing import StoreListing


def train_document(
    run: RunKey, store: str, listing: StoreListing, events: Sequence[JsonObject]
) -> JsonObject:
    """Return the run, how it went and its checkpoints as JSON."""
    return {
        "run": str(run),
        "store": store,
        **_course(events),
        "committed": [event for event in events if event["kind"] == "checkpoint.committed"],
        **listing_document(listing),
    }


def train_blocks(
    run: RunKey, listing: StoreListing, events: Sequence[JsonObject], *, now: str
) -> tuple[Block, ...]:
    """Return the run's checkpoints and the next commands."""
    return (
        Line.of(f"Run {run} {_course_in_words(_course(events))}", "good"),
        *listing_blocks(listing, now=now, empty="It has no checkpoints."),
        Heading("next"),
        Line.of(f"  strongroom verify {run}@latest"),
        Line.of(f"  strongroom evaluate {run}@latest"),
        Line.of(f"  strongroom promote {run}@latest --stage staging"),
    )


def _course_in_words(course: JsonObject) -> str:
    if course["attempt"] is None:
        return f"was complete already, at step {course['step']}; there was nothing left to train."
    resumed = course["resumed_from"]
    start = "from the start" if resumed is None else f"resumed from {resumed}"
    exact = "" if course["exact"] else f" Not exact: {'; '.join(course['inexact'])}."
    return f"is complete: step {course['step']}, attempt {course['attempt']}, {start}.{exact}"


def _course(events: Sequence[JsonObject]) -> JsonObject:
    by_kind = {event["kind"]: event for event in events}
    started = by_kind.get("training.started", {})
    # A run that is complete already starts nothing.
    return {
        "attempt": started.get("attempt"),
        "resumed_from": started.get("resumed_from"),
        "exact": started.get("exact", True),
        "inexact": started.get("inexact", []),
        "step": by_kind["training.finished"]["step"],
    }
