"""What every act of custody needs: the store, the keys and a cache; and how an act is recorded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strongroom.clock import now_utc
from strongroom.ledger.attestations import put_attestation
from strongroom.ledger.events import Event, EventKind
from strongroom.ledger.history import History
from strongroom.ledger.log import Ledger
from strongroom.names import CheckpointId, CheckpointName, Digest
from strongroom.signing.envelope import seal
from strongroom.signing.keyring import KeyFolder
from strongroom.signing.keys import Signer
from strongroom.signing.statement import Statement
from strongroom.storage.base import Storage
from strongroom.storage.store import Store, open_or_create_store, open_store


@dataclass(frozen=True, kw_only=True, slots=True)
class Custody:
    """A store together with the keys that sign what is done to it.

    Attributes:
        cache: a local folder for verified copies of inputs; deleting it loses nothing.
    """

    store: Store
    keys: KeyFolder
    cache: Path

    @classmethod
    def open(cls, url: str, *, keys: Path, cache: Path, create: bool = False) -> Custody:
        """Open the store at `url`; with `create`, make it where there is none.

        Raises:
            StoreMissingError: there is no store and `create` is false.
            StorageError: the storage cannot be reached.
        """
        store = open_or_create_store(url) if create else open_store(url)
        return cls(store=store, keys=KeyFolder(keys), cache=cache)

    @property
    def storage(self) -> Storage:
        """The store's bytes."""
        return self.store.storage

    def ledger(self) -> Ledger:
        """Return the store's ledger to read from; reading makes no key."""
        return Ledger(self.storage, self.keys.keyring())

    def history(self) -> History:
        """Return what the ledger says happened, every entry proved against its signed head."""
        return History.of(self.ledger().events())

    def record(
        self,
        kind: EventKind,
        *,
        checkpoint_id: CheckpointId | None = None,
        checkpoint: CheckpointName | None = None,
        actor: str | None = None,
        **facts: Any,  # noqa: ANN401 -- JSON
    ) -> int:
        """Append one event and return its index; the actor is the local service unless named."""
        # The service key is made on first use, so it comes before the keyring is read.
        signer = self.keys.service_signer()
        event = Event(
            kind=kind,
            time=now_utc(),
            actor=actor or f"service:{signer.key_id}",
            checkpoint_id=checkpoint_id,
            checkpoint=checkpoint,
            facts=facts,
        )
        return Ledger(self.storage, self.keys.keyring(), signer).append(event)

    def attest(self, statement: Statement, signer: Signer | None = None) -> Digest:
        """Sign `statement`, store it beside its subject and return its digest."""
        sealed = seal(statement, signer or self.keys.service_signer())
        return put_attestation(self.storage, sealed, statement.subject)
