"""What left the store, where to, and what may be done with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from strongroom.canonical import JsonObject
from strongroom.cli.blocks import Block, Line
from strongroom.governance.wording import size

if TYPE_CHECKING:
    from strongroom.checkpoint.catalogue import Committed
    from strongroom.checkpoint.manifest import Manifest


def export_document(committed: Committed, copy: Manifest, *, to: str, out: str) -> JsonObject:
    """Return the copy as JSON."""
    return {
        "checkpoint": str(committed.name),
        "checkpoint_id": str(committed.checkpoint_id),
        "format": to,
        "out": out,
        "exported_id": str(copy.checkpoint_id),
        "num_bytes": copy.num_bytes,
    }


def export_blocks(committed: Committed, copy: Manifest, *, to: str, out: str) -> Iterator[Block]:
    """Say what was copied, and whether its id is another now."""
    yield Line.of(
        f"{committed.name.short}: {size(copy.num_bytes)} as {to} in {out}, every byte checked",
        "good",
    )
    if copy.checkpoint_id != committed.checkpoint_id:
        yield Line.of(
            f"  It borrowed from other checkpoints and is whole now: its id is "
            f"{copy.checkpoint_id.hex[:12]}; `strongroom ledger tail` shows both."
        )
