"""The ledger's files, as they lie in a storage: read, and compared with the signed tree head.

Invariant: what a tree head covers is there, whole, and hashes to its root; else a `LedgerError`
names the file or the entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from strongroom.errors import ConflictError, LedgerError, ObjectMissingError
from strongroom.ledger.head import EMPTY_HEAD, TreeHead, open_head
from strongroom.ledger.tiles import (
    WIDTH,
    Tile,
    decode_bundle,
    split_hashes,
    tiles_of,
)
from strongroom.ledger.tree import leaf_hash, nodes_of, range_root
from strongroom.names import Digest
from strongroom.signing.keyring import Keyring
from strongroom.storage.base import Storage

LEDGER: Final = "ledger"
HEAD_KEY: Final = f"{LEDGER}/checkpoint"


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerFiles:
    """The files of one ledger.

    Attributes:
        origin: `strongroom/<store id>`: whose ledger it must be.
        keyring: whose services are believed.
    """

    storage: Storage
    origin: str
    keyring: Keyring

    def head(self) -> TreeHead:
        """Return the signed tree head, its signature verified.

        Raises:
            SignatureError: no service of the keyring has signed it as this ledger's.
            LedgerError: entries stand, but their tree head is gone.
        """
        try:
            note = self.storage.read(HEAD_KEY)
        except ObjectMissingError:
            if self.storage.stat(key_of(Tile(None, 0, 2))) is None:
                return EMPTY_HEAD
            # A second entry is never begun before a first head stands: it stands now, or is lost.
            note = self._read(HEAD_KEY)
        return open_head(note, self.origin, self.keyring)

    def tile(self, tile: Tile) -> bytes:
        """Return the bytes of a tile or bundle that must be there."""
        return self._read(key_of(tile))

    def entries(self, head: TreeHead) -> list[bytes]:
        """Return every entry `head` covers, checked against its root."""
        entries: list[bytes] = []
        for tile in tiles_of(head.size):
            if tile.level is None:
                entries += decode_bundle(self.tile(tile), tile)
        leaves = [leaf_hash(entry) for entry in entries]
        root = range_root(0, head.size, nodes_of(leaves))
        if root.hex() != head.root.hex:
            raise LedgerError(
                f"ledger of {head.size} events, {self._first_fault(leaves, head.size)}: expected "
                f"root {head.root}, got {Digest(root.hex())}; the record was changed: restore "
                "the ledger from a copy"
            )
        return entries

    def create_same(self, key: str, data: bytes) -> None:
        """Create an object that others may create with the same bytes."""
        try:
            self.storage.create(key, data)
        except ConflictError:
            check_same(key, data, self._read(key))

    def _first_fault(self, leaves: list[bytes], size: int) -> str:
        """Say which entry differs from the leaf hashes kept beside the entries."""
        for tile in tiles_of(size):
            if tile.level == 0:
                for place, kept in enumerate(split_hashes(self.tile(tile), tile)):
                    if leaves[tile.index * WIDTH + place] != kept:
                        return f"entry {tile.index * WIDTH + place}"
        return "entries and tiles agree with each other but not with the signed tree head"

    def _read(self, key: str) -> bytes:
        try:
            return self.storage.read(key)
        except ObjectMissingError as error:
            raise LedgerError(
                f"{key}: is missing, though the ledger must have it; restore it from a copy"
            ) from error


def key_of(tile: Tile) -> str:
    """Return the storage key of a tile or bundle."""
    return f"{LEDGER}/{tile.path}"


def check_same(key: str, expected: bytes, got: bytes) -> None:
    """Refuse a stored file that is not what the log's entries make it.

    Raises:
        LedgerError: it differs; the message names the first byte.
    """
    if expected != got:
        pairs = enumerate(zip(expected, got, strict=False))
        place = next((i for i, (a, b) in pairs if a != b), min(len(expected), len(got)))
        raise LedgerError(
            f"{key}: differs at byte {place} from what the ledger's entries make it (expected "
            f"{Digest.of(expected)}, got {Digest.of(got)}); it was changed: restore it from a copy"
        )
