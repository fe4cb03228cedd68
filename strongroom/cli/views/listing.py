"""What stands in a store, one row for each checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from strongroom.canonical import JsonObject
from strongroom.cli.blocks import NOTHING, Block, Cell, Column, Line, Table
from strongroom.cli.views.phrases import age
from strongroom.governance.wording import size
from strongroom.names import Digest

if TYPE_CHECKING:
    from strongroom.custody.listing import Line as Listed
    from strongroom.custody.listing import StoreListing

SHORTEST_ID = 8
CANDIDATE = "candidate"
COLUMNS = (
    Column(title="checkpoint", wraps=True),
    Column(title="id"),
    Column(title="age"),
    Column(title="size", right=True),
    Column(title="train loss", right=True),
    Column(title="held-out loss", right=True),
    Column(title="verified"),
    Column(title="evaluated"),
    Column(title="stage"),
)


def listing_blocks(listing: StoreListing, *, now: str, empty: str) -> tuple[Block, ...]:
    """Return the table, and a line for each folder that is no usable checkpoint."""
    lines = sorted(
        listing.lines, key=lambda line: (line.name.run, line.name.step, line.name.attempt)
    )
    digits = id_digits([line.checkpoint_id for line in lines])
    table = Table(
        columns=COLUMNS,
        rows=tuple(_row(line, digits, now, newest=_newest_attempt(line, lines)) for line in lines),
        empty=empty,
    )
    ignored = (
        Line.of(f"ignored: {item.folder}: {item.reason}", "bad" if item.damaged else "faint")
        for item in listing.ignored
    )
    return (table, *ignored)


def listing_document(listing: StoreListing) -> JsonObject:
    """Return the same for a program."""
    return {
        "checkpoints": [line.to_json() for line in listing.lines],
        "ignored": list(listing.ignored),
    }


def id_digits(ids: Collection[Digest]) -> int:
    """Return how many hex digits tell all of `ids` apart: at least 8, never more than 64."""
    for digits in range(SHORTEST_ID, 64):
        if len({item.hex[:digits] for item in ids}) == len(set(ids)):
            return digits
    return 64


def verified_cell(*, verified: bool | None, rung: int | None, quarantined: str | None) -> Cell:
    """Say what the ladder found, in a word or two."""
    if quarantined is not None:
        return Cell("quarantined", "bad")
    if verified is None:
        return NOTHING
    return Cell(f"rung {rung}", "good") if verified else Cell("failed", "bad")


def passed_cell(passed: bool | None) -> Cell:
    """Say whether something passed; nothing where it has not happened."""
    if passed is None:
        return NOTHING
    return Cell("passed", "good") if passed else Cell("failed", "bad")


def stage_cell(stages: Sequence[str]) -> Cell:
    """Name the stages that point here; a mere candidate is in the background."""
    climbed = [stage for stage in stages if stage != CANDIDATE]
    return Cell(", ".join(climbed), "good") if climbed else Cell(", ".join(stages) or "-", "faint")


def _newest_attempt(line: Listed, lines: Sequence[Listed]) -> bool:
    same = [other.name for other in lines if other.name.short == line.name.short]
    return line.name == max(same)


def _row(line: Listed, digits: int, now: str, *, newest: bool) -> tuple[Cell, ...]:
    # RUN/step means the newest attempt that has the step; an older one is named in full.
    name = line.name.short if newest else f"{line.name.short} ({line.name.attempt})"
    report = line.report
    return (
        Cell(name),
        Cell(line.checkpoint_id.hex[:digits]),
        Cell(age(line.created, now)),
        Cell(size(line.num_bytes)),
        _loss(line.metrics.get("train_loss")),
        _loss(None if report is None else report.loss),
        verified_cell(verified=line.verified, rung=line.rung, quarantined=line.quarantined)
        if line.recorded
        else Cell("not in ledger", "bad"),
        passed_cell(line.evaluated),
        stage_cell(line.stages),
    )


def _loss(value: float | None) -> Cell:
    return NOTHING if value is None else Cell(f"{value:.4f}")
