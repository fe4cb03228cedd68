"""What a training writes into the ledger: that an attempt started, that a checkpoint was committed.

Must: the entry follows the manifest, never the other way round. A crash between the two leaves a
checkpoint the ledger does not know; the next attempt finds it by its manifest and enters it then.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from strongroom.checkpoint.catalogue import Committed, checkpoint_names, read_checkpoint
from strongroom.checkpoint.manifest import Manifest
from strongroom.clock import now_utc
from strongroom.errors import FormatError, IntegrityError
from strongroom.ledger.events import Event, EventKind
from strongroom.ledger.history import History
from strongroom.ledger.log import Ledger
from strongroom.names import Attempt, CheckpointId, RunKey
from strongroom.signing.keyring import KeyFolder
from strongroom.storage.base import Storage
from strongroom.storage.store import Store

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Registrar:
    """Appends to the store's ledger in the name of the local service."""

    ledger: Ledger
    actor: str

    @classmethod
    def of(cls, store: Store, keys: KeyFolder) -> Registrar:
        """Open the ledger of `store`; the service's key is made on first use."""
        signer = keys.service_signer()
        ledger = Ledger(store.storage, keyring=keys.keyring(), signer=signer)
        return cls(ledger=ledger, actor=f"service:{signer.key_id}")

    def history(self) -> History:
        """Return what the ledger says happened."""
        return History.of(self.ledger.events())

    def enter_attempt(
        self, run: RunKey, attempt: Attempt, resumed_from: CheckpointId | None
    ) -> None:
        """Enter that an attempt started."""
        facts = {
            "run": str(run),
            "attempt": attempt.number,
            "resumed_from": None if resumed_from is None else str(resumed_from),
        }
        self.ledger.append(
            Event(kind=EventKind.ATTEMPT_STARTED, time=now_utc(), actor=self.actor, facts=facts)
        )

    def enter_commit(self, manifest: Manifest) -> None:
        """Enter that a checkpoint was committed."""
        self.ledger.append(
            Event(
                kind=EventKind.CHECKPOINT_COMMITTED,
                time=now_utc(),
                actor=self.actor,
                checkpoint_id=manifest.checkpoint_id,
                checkpoint=manifest.name,
                facts={"num_bytes": manifest.num_bytes},
            )
        )

    def enter_forgotten(self, storage: Storage, run: RunKey) -> list[Committed]:
        """Enter the commits of a run that the ledger lacks, and return them."""
        forgotten = forgotten_commits(storage, run, self.history())
        for committed in forgotten:
            self.enter_commit(committed.manifest)
            logger.warning(
                "commit entered late: checkpoint=%s id=%s; its attempt died before it could",
                committed.name,
                committed.checkpoint_id,
            )
        return forgotten


def forgotten_commits(storage: Storage, run: RunKey, history: History) -> list[Committed]:
    """Return the committed checkpoints of a run that the ledger does not know, oldest first.

    A manifest that its seal does not prove is left out, as is one whose name the ledger knows by
    another id: neither is a commit that was forgotten, and verification refuses both.
    """
    forgotten = []
    for name in checkpoint_names(storage, run):
        record = history.by_name(name)
        if record is not None and record.committed is not None:
            continue
        try:
            committed = read_checkpoint(storage, name)
        except (IntegrityError, FormatError) as error:
            logger.warning("damaged checkpoint left alone: checkpoint=%s %s", name, error)
            continue
        if record is None or record.checkpoint_id == committed.checkpoint_id:
            forgotten.append(committed)
    return forgotten
