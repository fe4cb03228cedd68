"""Let a copy of a checkpoint leave the store, and make it a matter of record.

What is in quarantine, or is not the checkpoint that the ledger recorded, does not leave.
"""

from __future__ import annotations

import logging

from strongroom.checkpoint.catalogue import Committed
from strongroom.checkpoint.export import export_dcp
from strongroom.checkpoint.manifest import Manifest
from strongroom.custody.context import Custody
from strongroom.errors import InputError, IntegrityError, QuarantinedError
from strongroom.ledger.events import EventKind
from strongroom.storage.store import open_storage

logger = logging.getLogger(__name__)

FORMATS = {"dcp": export_dcp}
"""Every format a checkpoint can be exported to."""


def export_checkpoint(
    custody: Custody, committed: Committed, *, to: str, destination: str
) -> Manifest:
    """Write a copy of a checkpoint to an empty folder and return the copy's manifest.

    Args:
        custody: of the store that holds the checkpoint.
        committed: the checkpoint.
        to: a name in `FORMATS`.
        destination: a folder, `file:///folder` or `s3://bucket/prefix?...`.

    Raises:
        InputError: no such format.
        QuarantinedError: the checkpoint is in quarantine.
        ConflictError: the destination is not empty.
        IntegrityError: a byte is not what was committed; the copy has no manifest then.
    """
    if to not in FORMATS:
        raise InputError(f"format {to!r}: expected one of {', '.join(sorted(FORMATS))}")
    _check_may_leave(custody, committed)
    copy = FORMATS[to](custody.storage, committed, open_storage(destination))
    custody.record(
        EventKind.CHECKPOINT_EXPORTED,
        checkpoint_id=committed.checkpoint_id,
        checkpoint=committed.name,
        format=to,
        exported=str(copy.checkpoint_id),
        num_bytes=copy.num_bytes,
    )
    logger.info(
        "checkpoint exported: checkpoint=%s id=%s format=%s exported_id=%s bytes=%d",
        committed.name,
        committed.checkpoint_id,
        to,
        copy.checkpoint_id,
        copy.num_bytes,
    )
    return copy


def _check_may_leave(custody: Custody, committed: Committed) -> None:
    record = custody.history().by_name(committed.name)
    if record is None:
        return  # its commit is not recorded yet: the seal vouches for it
    if record.committed is not None and record.checkpoint_id != committed.checkpoint_id:
        raise IntegrityError(
            "another manifest stands than the one the ledger recorded",
            file=committed.folder,
            expected=str(record.checkpoint_id),
            got=str(committed.checkpoint_id),
        )
    if record.quarantined is not None:
        raise QuarantinedError(
            f"export {committed.name}", [f"it is quarantined: {record.quarantined}"]
        )
