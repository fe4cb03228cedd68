"""Tell Dagster of committed checkpoints: as training commits them, or later if it missed them.

The store is the record and Dagster a view of it: registering twice says the same thing twice.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime

import dagster as dg

from assets.metadata import numbers
from assets.partitions import CHECKPOINTS, checkpoint_key
from strongroom.checkpoint.attempts import read_attempt
from strongroom.checkpoint.catalogue import Committed, read_checkpoint
from strongroom.checkpoint.run_record import read_run
from strongroom.errors import FormatError, IntegrityError, UnknownNameError
from strongroom.names import CheckpointName
from strongroom.storage.base import Storage

CHECKPOINT = dg.AssetKey("checkpoint")
DATA_VERSION_TAG = "dagster/data_version"
ATTEMPT = "attempt"


def register(
    instance: dg.DagsterInstance,
    storage: Storage,
    name: CheckpointName,
    measured: Mapping[str, float | None] | None = None,
) -> dg.AssetMaterialization:
    """Add the checkpoint's partition and return the event that its caller logs or reports.

    `measured` are numbers known only while it was saved, such as `durable_s`.
    """
    instance.add_dynamic_partitions(str(CHECKPOINTS.name), [checkpoint_key(name)])
    try:
        return _materialization(storage, read_checkpoint(storage, name), measured or {})
    except (IntegrityError, FormatError) as error:
        # It is registered all the same, so that verification meets it and quarantines it.
        return dg.AssetMaterialization(
            CHECKPOINT,
            partition=checkpoint_key(name),
            metadata={
                "checkpoint": str(name),
                "damaged": str(error),
                ATTEMPT: name.attempt.number,
            },
        )


def missed(instance: dg.DagsterInstance, names: Iterable[CheckpointName]) -> list[CheckpointName]:
    """Return those of `names` that Dagster has not heard of, oldest first."""
    newest = {checkpoint_key(name): name for name in sorted(names)}
    known = instance.get_materialized_partitions(CHECKPOINT)
    return [
        name
        for key, name in newest.items()
        if key not in known
        or (name.attempt.number > 1 and _told_attempt(instance, key) != name.attempt.number)
    ]


def _told_attempt(instance: dg.DagsterInstance, key: str) -> object:
    """Return the attempt that Dagster heard of last for a step: a later one may save it again."""
    wanted = dg.AssetRecordsFilter(CHECKPOINT, asset_partitions=[key])
    for record in instance.fetch_materializations(wanted, limit=1).records:
        if record.asset_materialization is not None:
            return record.asset_materialization.metadata[ATTEMPT].value
    return None


def exactness(storage: Storage, name: CheckpointName) -> str:
    """Return whether a checkpoint is, bit for bit, that of a run that never stopped; else why."""
    try:
        run, attempt = read_run(storage, name.run), read_attempt(storage, name.run, name.attempt)
    except (UnknownNameError, FormatError) as error:
        return f"not known: {error}"
    reasons = (*run.inexact, *attempt.inexact)
    return "yes" if not reasons else f"no: {'; '.join(reasons)}"


def _materialization(
    storage: Storage, committed: Committed, measured: Mapping[str, float | None]
) -> dg.AssetMaterialization:
    name, manifest = committed.name, committed.manifest
    return dg.AssetMaterialization(
        CHECKPOINT,
        partition=checkpoint_key(name),
        metadata={
            "checkpoint": str(name),
            "checkpoint_id": str(committed.checkpoint_id),
            "saved": dg.MetadataValue.timestamp(datetime.fromisoformat(manifest.created)),
            "folder": dg.MetadataValue.path(committed.folder),
            "exact": exactness(storage, name),
            **numbers(
                {
                    "step": name.step.number,
                    ATTEMPT: name.attempt.number,
                    "world_size": manifest.world_size,
                    "num_bytes": manifest.num_bytes,
                    **manifest.metrics,
                    **measured,
                }
            ),
        },
        tags={DATA_VERSION_TAG: str(committed.checkpoint_id)},
    )
