"""The two sets of partitions: runs by run key, checkpoints by `RUN@STEP`.

Law: `checkpoint_of(storage, checkpoint_key(name))` is `name`, unless a newer attempt of the run has
saved the same step: the partition then means that newer one.
"""

import warnings

import dagster as dg

from strongroom.checkpoint.catalogue import checkpoint_names
from strongroom.errors import InputError, UnknownNameError
from strongroom.names import CheckpointName, RunKey
from strongroom.storage.base import Storage

RUNS = dg.DynamicPartitionsDefinition(name="runs")
CHECKPOINTS = dg.DynamicPartitionsDefinition(name="checkpoints")


def checkpoint_key(name: CheckpointName) -> str:
    """Return the partition key of a checkpoint, e.g. `nightly-2026-01-31@40`."""
    return f"{name.run}@{name.step.number}"


def checkpoint_of(storage: Storage, key: str) -> CheckpointName:
    """Return the checkpoint a partition key means: the newest attempt's, of that run and step.

    Raises:
        InputError: not `RUN@STEP`.
        UnknownNameError: the store holds no such checkpoint.
    """
    run, at, step = key.rpartition("@")
    if not at or not step.isdecimal():
        raise InputError(f"checkpoint partition {key!r}: expected RUN@STEP, e.g. nightly-7@40")
    names = checkpoint_names(storage, RunKey.parse(run))
    found = [name for name in names if name.step.number == int(step)]
    if not found:
        raise UnknownNameError(
            f"checkpoint partition {key!r}: {storage.url} holds no checkpoint of run {run} at "
            f"step {step}; `strongroom ls {run}` lists those it has"
        )
    return max(found)


def checkpoint_check(
    asset: str, name: str, description: str, *, blocking: bool = True
) -> dg.AssetCheckSpec:
    """Return a check whose verdicts are kept for each checkpoint.

    Without partitions a check remembers its last verdict only, and one good checkpoint would let a
    bad one pass.
    """
    with warnings.catch_warnings():
        # Partitioned checks are a preview in the pinned release; tests hold them to what they do.
        warnings.simplefilter("ignore", dg.PreviewWarning)
        return dg.AssetCheckSpec(
            name=name,
            asset=asset,
            description=description,
            blocking=blocking,
            partitions_def=CHECKPOINTS,
        )
