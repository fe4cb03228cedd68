"""Checkpoints that a run seems to have: manifests made from a real one, sealed, without shards.

Whatever reads manifests alone takes them for checkpoints; the verification ladder does not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from strongroom.checkpoint.catalogue import checkpoint_names, read_checkpoint
from strongroom.checkpoint.manifest import Manifest
from strongroom.custody.context import Custody
from strongroom.ledger.events import EventKind
from strongroom.names import Attempt, CheckpointId, CheckpointName, RunKey, Step
from tests.support.crafted import seal


def newest_manifest(custody: Custody, run: RunKey) -> Manifest:
    """Return the manifest of the run's newest checkpoint."""
    return read_checkpoint(custody.storage, checkpoint_names(custody.storage, run)[-1]).manifest


def forge(
    custody: Custody,
    run: RunKey,
    *,
    attempt: int,
    step: int,
    is_recorded: bool = True,
    **changes: Any,  # noqa: ANN401 -- fields of Manifest
) -> Manifest:
    """Store a manifest like the newest one of the run, changed so; enter its commit if wanted."""
    name = CheckpointName(run, Attempt(attempt), Step(step))
    manifest = replace(newest_manifest(custody, run), name=name, **changes)
    seal(custody.storage, manifest)
    if is_recorded:
        custody.record(
            EventKind.CHECKPOINT_COMMITTED,
            checkpoint_id=manifest.checkpoint_id,
            checkpoint=name,
            num_bytes=manifest.num_bytes,
        )
    return manifest


def start_attempt(
    custody: Custody, run: RunKey, attempt: int, *, resumed_from: CheckpointId | None
) -> None:
    """Enter that an attempt of the run started."""
    custody.record(
        EventKind.ATTEMPT_STARTED,
        run=str(run),
        attempt=attempt,
        resumed_from=None if resumed_from is None else str(resumed_from),
    )


def without_tensors(manifest: Manifest, prefix: str) -> dict[str, Any]:
    """Return the change that leaves out the tensors whose names begin so."""
    kept = tuple(item for item in manifest.tensors if not item.name.startswith(prefix))
    return {"tensors": kept}
