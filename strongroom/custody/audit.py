"""Explain one checkpoint to a stranger: read everything about it, prove it, render one page.

What cannot be read is a named fault on the page, never a reason to leave it out.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from strongroom.checkpoint.attempts import AttemptRecord, read_attempt
from strongroom.checkpoint.catalogue import read_checkpoint
from strongroom.checkpoint.manifest import Manifest
from strongroom.checkpoint.run_record import RunRecord, read_run
from strongroom.clock import now_utc
from strongroom.custody.context import Custody
from strongroom.errors import (
    ConflictError,
    FormatError,
    InputError,
    IntegrityError,
    UnknownNameError,
)
from strongroom.governance.audit import AuditSource, entries_about, gather
from strongroom.governance.audit_record import AuditRecord
from strongroom.governance.report import render
from strongroom.ledger.attestations import read_attestations
from strongroom.ledger.events import Event
from strongroom.ledger.head import TreeHead
from strongroom.ledger.history import CheckpointRecord, History
from strongroom.ledger.proof import InclusionProof
from strongroom.names import CheckpointId
from strongroom.signing.envelope import SealedStatement

logger = logging.getLogger(__name__)

MAX_READINGS = 20


def audit_checkpoint(custody: Custody, checkpoint_id: CheckpointId) -> AuditRecord:
    """Gather and prove everything the store holds about one checkpoint.

    Raises:
        UnknownNameError: the ledger says nothing about such a checkpoint.
        LedgerError, SignatureError: the ledger itself cannot be believed.
    """
    read = _read_ledger(custody, checkpoint_id)
    history = History.of(read.events)
    record = history.records.get(checkpoint_id)
    if record is None:
        raise UnknownNameError(
            f"checkpoint {checkpoint_id.short}: the ledger says nothing about it; "
            "`strongroom ls` lists the checkpoints"
        )
    faults: list[str] = []
    siblings = [item for item in history.records.values() if item.name.run == record.name.run]
    source = AuditSource(
        store_id=custody.store.store_id,
        events=read.events,
        head=read.head,
        proofs=read.proofs,
        keyring=custody.keys.keyring(),
        run=_run(custody, record, faults),
        attempt=_attempt(custody, record, faults),
        manifest=_manifest(custody, record, faults),
        statements={item.checkpoint_id: _statements(custody, item, faults) for item in siblings},
        faults=faults,
        now=now_utc(),
    )
    return gather(checkpoint_id, source)


def write_report(custody: Custody, checkpoint_id: CheckpointId, path: Path) -> AuditRecord:
    """Write the checkpoint's audit report, one self-contained HTML page, to `path`.

    Raises:
        InputError: the file cannot be written.
    """
    record = audit_checkpoint(custody, checkpoint_id)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render(record), encoding="utf-8")
    except OSError as error:
        raise InputError(f"report {path}: cannot be written: {error.strerror}") from error
    logger.info("audit report written: checkpoint=%s path=%s", record.name, path)
    return record


@dataclass(frozen=True, kw_only=True, slots=True)
class _LedgerReading:
    """The ledger at one size: its events, head and the proofs about one checkpoint."""

    events: list[Event]
    head: TreeHead
    proofs: list[InclusionProof]


def _read_ledger(custody: Custody, checkpoint_id: CheckpointId) -> _LedgerReading:
    """Read until nothing was appended meanwhile, so that all of it belongs to one tree head."""
    ledger = custody.ledger()
    for _ in range(MAX_READINGS):
        events = ledger.events()
        indexes = entries_about(History.of(events), checkpoint_id)
        proofs = [ledger.prove(index) for index in indexes]
        head = ledger.head()
        if head.size == len(events) and all(proof.head == head.note for proof in proofs):
            return _LedgerReading(events=events, head=head, proofs=proofs)
    raise ConflictError(
        f"ledger of {custody.store.url}: it grew at each of {MAX_READINGS} readings; "
        "try again when less is being recorded"
    )


def _statements(
    custody: Custody, record: CheckpointRecord, faults: list[str]
) -> tuple[SealedStatement, ...]:
    reading = read_attestations(custody.storage, record.checkpoint_id, custody.keys.keyring())
    faults += [f"An attestation cannot be believed: {fault}" for fault in reading.faults]
    return reading.statements


def _run(custody: Custody, record: CheckpointRecord, faults: list[str]) -> RunRecord | None:
    try:
        return read_run(custody.storage, record.name.run)
    except (UnknownNameError, FormatError) as error:
        faults.append(f"The run's record cannot be read: {error}")
        return None


def _attempt(custody: Custody, record: CheckpointRecord, faults: list[str]) -> AttemptRecord | None:
    try:
        return read_attempt(custody.storage, record.name.run, record.name.attempt)
    except (UnknownNameError, FormatError) as error:
        faults.append(f"The attempt's record cannot be read: {error}")
        return None


def _manifest(custody: Custody, record: CheckpointRecord, faults: list[str]) -> Manifest | None:
    try:
        return read_checkpoint(custody.storage, record.name).manifest
    except (UnknownNameError, IntegrityError, FormatError) as error:
        faults.append(f"The manifest cannot be read: {error}")
        return None
