"""Small ledgers for tests: a store in memory, a service that signs, events that mean something."""

from __future__ import annotations

from dataclasses import dataclass, field

from strongroom.ledger.events import Event, EventKind
from strongroom.ledger.log import Ledger
from strongroom.names import Attempt, CheckpointId, CheckpointName, Digest, RunKey, Step
from strongroom.signing.keyring import Holder, Keyring, Role
from strongroom.signing.keys import Signer
from strongroom.storage.memory import Faults, MemoryStorage
from strongroom.storage.store import make_store

RUN = RunKey("nightly-7")
TIME = "2026-01-31T08:15:00.123Z"
SIGNER = Signer.generate()
SERVICE = Holder.of("service", Role.SERVICE, SIGNER)
KEYRING = Keyring([SERVICE])


def digest_of(text: str) -> Digest:
    return Digest.of(text.encode())


def checkpoint_id(number: int) -> CheckpointId:
    return CheckpointId(digest_of(f"manifest {number}"))


def checkpoint_name(number: int) -> CheckpointName:
    return CheckpointName(RUN, Attempt(1), Step(number))


def about(kind: EventKind, number: int, *, actor: str = SERVICE.actor, **facts: object) -> Event:
    """Return an event about checkpoint `number`."""
    return Event(
        kind=kind,
        time=TIME,
        actor=actor,
        checkpoint_id=checkpoint_id(number),
        checkpoint=checkpoint_name(number),
        facts=facts,
    )


def committed(number: int) -> Event:
    return about(EventKind.CHECKPOINT_COMMITTED, number, num_bytes=1000 + number)


def run_created(run: RunKey = RUN, *, author: str = "leyla") -> Event:
    inputs = {name: str(digest_of(name)) for name in ("config", "base_model", "dataset")}
    return Event(
        kind=EventKind.RUN_CREATED,
        time=TIME,
        actor=SERVICE.actor,
        facts={
            "run": str(run),
            "author": author,
            "tokenizer": str(digest_of("tokenizer")),
            **inputs,
        },
    )


@dataclass(frozen=True, slots=True)
class MemoryLedger:
    """A store in memory, and its ledger as one process sees it; nobody in it is patient."""

    storage: MemoryStorage = field(default_factory=MemoryStorage)

    @classmethod
    def new(cls, num_events: int = 0) -> MemoryLedger:
        """Return one that holds `num_events` commits."""
        new = cls()
        make_store(new.storage)
        for number in range(num_events):
            new.open().append(committed(number))
        return new

    def open(self, keyring: Keyring = KEYRING, signer: Signer | None = SIGNER) -> Ledger:
        return Ledger(self.storage, keyring, signer, patience_s=0.0)

    def reopened(self, faults: Faults | None = None) -> MemoryLedger:
        """Return the same store as another process sees it."""
        return MemoryLedger(self.storage.reopen(faults=faults))

    @property
    def files(self) -> dict[str, bytes]:
        """Every file of the ledger."""
        return {info.key: self.storage.read(info.key) for info in self.storage.walk("ledger")}
