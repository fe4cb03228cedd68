"""Verifying a whole ledger: the head, every entry and its signature, every byte of every file."""

from __future__ import annotations

from dataclasses import dataclass

from strongroom.errors import InputError, LedgerError
from strongroom.ledger.appender import State
from strongroom.ledger.entries import Entry
from strongroom.ledger.facts import fact_of
from strongroom.ledger.files import HEAD_KEY, LEDGER, LedgerFiles, check_same, key_of
from strongroom.ledger.tiles import WIDTH, Tile, encode_bundle, tile_bytes, tiles_of
from strongroom.ledger.tree import leaf_hash, nodes_of
from strongroom.names import Digest


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerReport:
    """What a full verification found true.

    Attributes:
        size: number of events.
        root: RFC 6962 root hash over them.
        signed_by: actor of the service that signed the tree head; None for an empty ledger.
        num_files: files that were compared, byte for byte.
        num_unfinished: entries that wait for their tree head, 0 or 1; readers do not see them.
        ignored: keys under `ledger/` that are no part of a ledger; they were left alone.
    """

    size: int
    root: Digest
    signed_by: str | None
    num_files: int
    num_unfinished: int
    ignored: tuple[str, ...]


def verify(files: LedgerFiles) -> LedgerReport:
    """Check everything; see `Ledger.verify`."""
    head = files.head()
    entries = files.entries(head)
    for index, data in enumerate(entries):
        entry = Entry.from_bytes(data, index=index)
        entry.check(files.origin, files.keyring)
        fact_of(index, entry.event)
    node = nodes_of([leaf_hash(entry) for entry in entries])
    missing = set(tiles_of(head.size))
    ignored: list[str] = []
    num_files, num_stored = (1 if head.note else 0), head.size
    for info in files.storage.walk(LEDGER):
        try:
            tile = Tile.parse(info.key.removeprefix(f"{LEDGER}/"))
        except InputError:
            if info.key != HEAD_KEY:
                ignored.append(info.key)
            continue
        if tile.covered_by(head.size):
            first = tile.index * WIDTH
            expected = (
                encode_bundle(entries[first : first + tile.width])
                if tile.level is None
                else tile_bytes(tile, node)
            )
            check_same(info.key, expected, files.tile(tile))
            missing.discard(tile)
            num_files += 1
        elif tile.level is None:
            num_stored = max(num_stored, tile.index * WIDTH + tile.width)
    if missing:
        keys = sorted(key_of(tile) for tile in missing)
        raise LedgerError(f"ledger: missing {', '.join(keys)}; restore them from a copy")
    return LedgerReport(
        size=head.size,
        root=head.root,
        signed_by=head.signed_by,
        num_files=num_files,
        num_unfinished=_num_unfinished(files, num_stored),
        ignored=tuple(ignored),
    )


def _num_unfinished(files: LedgerFiles, num_stored: int) -> int:
    """Return how many entries wait for a head, after `num_stored` were seen stored."""
    state = State.read(files)
    # At most one append is unfinished at any time, so this later head covers all but one.
    if num_stored > state.head.size + 1:
        raise LedgerError(
            f"ledger: {num_stored} entries are stored, the signed tree head covers "
            f"{state.head.size}; the head was set back, or entries were laid beside the log: "
            "compare with a tree head kept elsewhere; the next append mends one that was set back"
        )
    if num_stored <= state.head.size:
        return 0
    state.entry_of(files.tile(state.next_bundle), files)
    return 1
