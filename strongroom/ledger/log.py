"""The ledger of a store: append, read, prove, verify.

Invariant: readers see exactly the events that a tree head signed by a service of the keyring
covers, in the order they were appended. Where it stands and how it is spelt: docs/ledger.md.
"""

from __future__ import annotations

from functools import cached_property

from strongroom.errors import InputError
from strongroom.ledger import verifier
from strongroom.ledger.appender import Appender
from strongroom.ledger.entries import Entry
from strongroom.ledger.events import Event
from strongroom.ledger.files import LEDGER, LedgerFiles
from strongroom.ledger.head import TreeHead
from strongroom.ledger.proof import ConsistencyProof, InclusionProof, check_size
from strongroom.ledger.tiles import WIDTH, Tile, decode_bundle, nodes_from
from strongroom.ledger.tree import consistency_path, inclusion_path
from strongroom.ledger.verifier import LedgerReport
from strongroom.names import Digest
from strongroom.signing.keyring import Keyring
from strongroom.signing.keys import Signer
from strongroom.storage.base import Storage
from strongroom.storage.store import read_store

__all__ = ["LEDGER", "Ledger", "LedgerReport", "TreeHead"]


class Ledger:
    """The ledger of one store."""

    def __init__(
        self,
        storage: Storage,
        keyring: Keyring,
        signer: Signer | None = None,
        *,
        patience_s: float = 3.0,
        limit_s: float = 60.0,
    ) -> None:
        """Open the ledger of the store in `storage`; nothing is read yet.

        Args:
            storage: holds `strongroom.json`, which names the ledger.
            keyring: whose services are believed.
            signer: this installation's service key; None to read only.
            patience_s: how long an appender is waited for before it is taken for dead; must be
                the same in every process.
            limit_s: how long an append tries before it gives up.
        """
        self._storage = storage
        self._keyring = keyring
        self._signer = signer
        self._patience_s = patience_s
        self._limit_s = limit_s

    @property
    def origin(self) -> str:
        """`strongroom/<store id>`, the name tree heads are signed under.

        Raises:
            StoreMissingError: the storage holds no store.
        """
        return self._files.origin

    def append(self, event: Event) -> int:
        """Append `event`; return its index once a signed tree head covers it.

        Where a storage error comes out, the event may be recorded nevertheless: the next append
        finishes what was begun. Appending it again then records it twice, which a history bears.

        Raises:
            InputError: the ledger was opened without a key, or the event is too long.
            FormatError: the event lacks a fact that its kind must have.
            SignatureError: this key is not a service's, or the log was not written by services.
            LedgerError: the stored log contradicts its signed tree head; nothing was appended.
            ConflictError: other appenders were faster for `limit_s`; nothing was appended.
        """
        return self._appender().append(event)

    def recover(self) -> int:
        """Finish what dead appenders left; return how many events that made visible.

        Raises:
            InputError, SignatureError, LedgerError, ConflictError: as `append`.
        """
        return self._appender().recover()

    def head(self) -> TreeHead:
        """Return the signed tree head, its signature verified; size 0 before the first event.

        Raises:
            SignatureError: no service of the keyring has signed it as this store's.
            LedgerError: entries stand, but their tree head is gone.
        """
        return self._files.head()

    def events(self) -> list[Event]:
        """Return every event a signed tree head covers, each checked against its root.

        Raises:
            LedgerError: an entry is missing or is not the one that was signed for.
            SignatureError: the tree head is not signed by a service of the keyring.
            FormatError: an entry is malformed, or its event of an unknown version.
        """
        entries = self._files.entries(self.head())
        return [Entry.from_bytes(entry, index=i).event for i, entry in enumerate(entries)]

    def prove(self, index: int) -> InclusionProof:
        """Return a proof, valid without the store, that the event at `index` stands there.

        Raises:
            InputError: there is no event of that index.
            LedgerError: the stored log does not prove it.
        """
        head = self.head()
        if not 0 <= index < head.size:
            raise InputError(f"ledger: it has {head.size} events, counted from 0; got {index}")
        number, place = divmod(index, WIDTH)
        bundle = Tile(None, number, min(WIDTH, head.size - number * WIDTH))
        node = nodes_from(head.size, self._files.tile)
        proof = InclusionProof(
            index=index,
            entry=decode_bundle(self._files.tile(bundle), bundle)[place],
            path=_digests(inclusion_path(index, head.size, node)),
            head=head.note,
        )
        proof.check(self.origin, self._keyring)
        return proof

    def prove_consistency(self, old_size: int) -> ConsistencyProof:
        """Return a proof that the ledger only grew since it had `old_size` events.

        Raises:
            LedgerError: the ledger is smaller than that.
        """
        head = self.head()
        node = nodes_from(head.size, self._files.tile)
        path = consistency_path(check_size(old_size, head), head.size, node)
        return ConsistencyProof(old_size=old_size, path=_digests(path), head=head.note)

    def verify(self) -> LedgerReport:
        """Check everything: the head, every entry and its signature, every byte of every file.

        Raises:
            LedgerError: a file contradicts the signed tree head, or is missing.
            SignatureError: the tree head or an entry is not signed by a service of the keyring.
            FormatError: an entry is malformed, or of an unknown version.
        """
        return verifier.verify(self._files)

    @cached_property
    def _files(self) -> LedgerFiles:
        store_id = read_store(self._storage).store_id
        return LedgerFiles(
            storage=self._storage, origin=f"strongroom/{store_id}", keyring=self._keyring
        )

    def _appender(self) -> Appender:
        if self._signer is None:
            raise InputError("ledger: was opened for reading; open it with the service's key")
        return Appender(
            files=self._files,
            signer=self._signer,
            patience_s=self._patience_s,
            limit_s=self._limit_s,
        )


def _digests(hashes: list[bytes]) -> tuple[Digest, ...]:
    return tuple(Digest(item.hex()) for item in hashes)
