"""Appending to the ledger from many processes, none of which may be trusted to live.

Invariant: the entry bundles alone are the log; tiles and the signed tree head follow from them.

An append goes in this order; each step is durable before the next begins:

1. the bundle that ends with the new entry is created. A key is created once, so of many
   appenders exactly one gets the place: this is the lock, and the moment nothing is lost after;
2. the hash tiles that came to be are created;
3. `checkpoint`, the signed tree head, is replaced. Only now do readers see the event.

Whoever finds an entry that no tree head covers waits `patience_s` for its appender; then takes it
for dead, checks the entry's own signature and finishes the append for it. Nobody appends behind an
unfinished entry, so at most one is unfinished at a time. An appender that took longer than others
are patient looks again afterwards, because its tree head may have undone a newer one.
"""

from __future__ import annotations

import logging
import random
import time
from dataclasses import dataclass

from strongroom.errors import ConflictError, LedgerError, SignatureError
from strongroom.ledger.entries import Entry, new_nonce, sign_entry
from strongroom.ledger.events import Event
from strongroom.ledger.facts import fact_of
from strongroom.ledger.files import HEAD_KEY, LedgerFiles, check_same, key_of
from strongroom.ledger.head import TreeHead, sign_head
from strongroom.ledger.tiles import (
    Edge,
    Tile,
    bundle_at,
    bundle_ending,
    decode_bundle,
    encode_bundle,
)
from strongroom.ledger.tree import leaf_hash
from strongroom.names import Digest
from strongroom.signing.keys import Signer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """What an append starts from: the signed head, and the right edge that leads to it.

    Attributes:
        bundle: bytes of the partial bundle at the end; empty where the last one is full.
    """

    head: TreeHead
    bundle: bytes
    edge: Edge

    @classmethod
    def read(cls, files: LedgerFiles) -> State:
        """Read it.

        Raises:
            LedgerError: the stored log contradicts its head; it may not be built upon.
        """
        head = files.head()
        tile = bundle_at(head.size)
        bundle = b"" if tile is None else files.tile(tile)
        entries = [] if tile is None else decode_bundle(bundle, tile)
        edge = Edge.of(head.size, entries, files.tile)
        if (root := Digest(edge.root().hex())) != head.root:
            raise LedgerError(
                f"ledger of {head.size} events: expected root {head.root}, got {root} from the "
                "stored files; nothing may be appended: run `strongroom ledger verify`, then "
                "restore the ledger from a copy"
            )
        return cls(head=head, bundle=bundle, edge=edge)

    @property
    def next_bundle(self) -> Tile:
        """The bundle that the next entry completes."""
        return bundle_ending(self.head.size + 1)

    def entry_of(self, bundle: bytes, files: LedgerFiles) -> bytes:
        """Return the entry by which `bundle` (at `next_bundle`) goes beyond this state.

        Raises:
            LedgerError: the bundle does not continue this log.
            SignatureError: no service has signed the entry for this place.
        """
        tile = self.next_bundle
        entry = decode_bundle(bundle, tile)[-1]
        check_same(key_of(tile), self.bundle + encode_bundle([entry]), bundle)
        Entry.from_bytes(entry, index=self.head.size).check(files.origin, files.keyring)
        return entry


@dataclass(frozen=True, kw_only=True, slots=True)
class Appender:
    """Appends to one ledger with one service's key.

    Attributes:
        patience_s: how long an appender is waited for; must be the same in every process.
        limit_s: how long an append tries before it gives up.
    """

    files: LedgerFiles
    signer: Signer
    patience_s: float
    limit_s: float

    def __post_init__(self) -> None:
        if self.signer.key_id not in self.files.keyring.services():
            raise SignatureError(
                f"ledger: key {self.signer.key_id} is no service's key in the keyring; nobody "
                "would believe what it appends: register it first"
            )

    def append(self, event: Event) -> int:
        """Append `event`; see `Ledger.append`."""
        nonce = new_nonce()
        turn = _Turn(self.patience_s, self.limit_s)
        while True:
            state = State.read(self.files)
            index = state.head.size
            fact_of(index, event)
            entry = sign_entry(
                event, index=index, nonce=nonce, origin=self.files.origin, signer=self.signer
            )
            bundle = state.bundle + encode_bundle([entry])
            began_s = time.monotonic()
            try:
                self.files.storage.create(key_of(state.next_bundle), bundle)
            except ConflictError:
                found = self.files.tile(state.next_bundle)
                # Our own bytes: the storage's answer was lost and its client asked twice.
                if found != bundle:
                    if self._is_dead(state, turn):
                        self._finish(state, found)
                    continue
            self._publish(state, entry)
            if self._is_late(began_s):
                self.recover()
            logger.info(
                "ledger appended: index=%d kind=%s checkpoint=%s",
                index,
                event.kind,
                event.checkpoint,
            )
            return index

    def recover(self) -> int:
        """Finish what dead appenders left; see `Ledger.recover`."""
        num_finished = 0
        turn = _Turn(self.patience_s, self.limit_s)
        while True:
            state = State.read(self.files)
            if self.files.storage.stat(key_of(state.next_bundle)) is None:
                return num_finished
            if self._is_dead(state, turn):
                num_finished += self._finish(state, self.files.tile(state.next_bundle))

    def _is_dead(self, state: State, turn: _Turn) -> bool:
        """Say whether the unfinished append after `state` will not be finished by its appender."""
        behind = key_of(bundle_ending(state.head.size + 2))
        if self.files.storage.stat(behind) is not None:
            # An entry behind it proves that its head stood: it still stands, or was set back.
            return self.files.head().size <= state.head.size
        return not turn.wait(state.head.size)

    def _finish(self, state: State, bundle: bytes) -> bool:
        """Finish the append of a dead appender, if it was one of ours; say whether it was us."""
        finished = self._publish(state, state.entry_of(bundle, self.files))
        if finished:
            logger.warning("ledger append finished for a dead process: index=%d", state.head.size)
        return finished

    def _publish(self, state: State, entry: bytes) -> bool:
        """Create the tiles after `entry`, which stands in its bundle, and sign the new head.

        Returns:
            False where others have done it already.
        """
        edge, tiles = state.edge.grown(leaf_hash(entry))
        for tile, data in tiles.items():
            self.files.create_same(key_of(tile), data)
        note = sign_head(self.files.origin, edge.size, edge.root(), self.signer)
        # Others may have finished this one meanwhile and gone on: a head is never set back.
        if self.files.head().size >= edge.size:
            return False
        self.files.storage.replace(HEAD_KEY, note)
        return True

    def _is_late(self, began_s: float) -> bool:
        """Say whether others may have taken this append for dead before its head was written."""
        return time.monotonic() - began_s >= self.patience_s / 2


class _Turn:
    """How one append waits for others: with jitter, not for ever, and only so long for the dead."""

    def __init__(self, patience_s: float, limit_s: float) -> None:
        self._patience_s = patience_s
        self._limit_s = limit_s
        self._began_s = time.monotonic()
        self._size = -1
        self._since_s = 0.0
        self._pause_s = 0.0

    def wait(self, size: int) -> bool:
        """Pause, because the append behind `size` events is unfinished; False when it is dead.

        Raises:
            ConflictError: the time is up.
        """
        now_s = time.monotonic()
        if now_s - self._began_s >= self._limit_s:
            raise ConflictError(
                f"ledger: other processes were appending for {self._limit_s:.0f} s and this one "
                "never got its turn; nothing was appended: try again"
            )
        if size != self._size:
            self._size, self._since_s, self._pause_s = size, now_s, 0.005
        if now_s - self._since_s >= self._patience_s:
            return False
        self._pause_s = min(self._pause_s * 2, 0.25)
        time.sleep(random.SystemRandom().uniform(self._pause_s / 4, self._pause_s))
        return True
