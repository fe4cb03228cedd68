"""Which checkpoint a run resumes from: the newest that holds at this moment.

Newest means the newest attempt's newest step. What the ledger has quarantined is passed over;
every other candidate climbs rungs 1 and 2 now, whatever was found of it before.
"""

from __future__ import annotations

import logging

from strongroom.checkpoint.catalogue import Committed, checkpoint_names, read_checkpoint
from strongroom.ledger.history import History
from strongroom.names import CheckpointId, CheckpointName, RunKey
from strongroom.storage.base import Storage
from strongroom.verification.ladder import Rung, verify

logger = logging.getLogger(__name__)


def newest_usable(
    storage: Storage, run: RunKey, *, history: History | None = None
) -> tuple[Committed | None, list[tuple[CheckpointName, str]]]:
    """Return the checkpoint to resume from, and those newer ones that were rejected, with reasons.

    None with rejected ones means that there was something to resume from and it is lost: the
    caller fails unless a fresh start was asked for. None without any means that no save of the run
    ever committed.

    Raises:
        StorageError: the storage does not answer.
    """
    rejected: list[tuple[CheckpointName, str]] = []
    for name in reversed(checkpoint_names(storage, run)):
        reason = _reason_against(storage, name, history)
        if reason is None:
            return read_checkpoint(storage, name), rejected
        logger.warning("checkpoint rejected: checkpoint=%s reason=%s", name, reason)
        rejected.append((name, reason))
    return None, rejected


def _reason_against(storage: Storage, name: CheckpointName, history: History | None) -> str | None:
    records = [] if history is None else list(history.records.values())
    expected_id: CheckpointId | None = None
    for record in records:
        if record.name != name:
            continue
        if record.quarantined is not None:
            return f"quarantined: {record.quarantined}"
        if record.committed is not None:
            expected_id = record.checkpoint_id
    report = verify(storage, name, expected_id=expected_id, up_to=Rung.STRUCTURE)
    return None if report.passed else "; ".join(report.findings)
