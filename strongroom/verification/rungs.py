"""The rungs of the verification ladder: each proves one thing of one checkpoint, or says why not.

A rung returns findings for what is the checkpoint's fault. What keeps the machine from climbing,
such as a storage that does not answer or a base model that is gone, is raised: it proves nothing.
Absent evidence is a finding. torch is imported where a rung needs it, so that those who only read
reports do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

from strongroom import canonical
from strongroom.canonical import JsonObject
from strongroom.checkpoint.catalogue import Committed, read_checkpoint
from strongroom.checkpoint.entries import TensorEntry
from strongroom.checkpoint.layout import checkpoint_folder, run_record_key
from strongroom.checkpoint.manifest import MANIFEST_FILE
from strongroom.checkpoint.run_record import RunRecord
from strongroom.errors import (
    FormatError,
    InputError,
    IntegrityError,
    StrongroomError,
    UnknownNameError,
    VerificationError,
)
from strongroom.names import CheckpointId, CheckpointName, StateDigest
from strongroom.storage.base import Storage
from strongroom.verification.stored import stored_faults
from strongroom.verification.structure import structure_faults

if TYPE_CHECKING:
    from torch import Tensor

TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-2, "float8": 5e-2}
"""How far the probe's loss may be from the one at the save, relative, by what it was computed in:
a sharded and a whole forward add in another order, and a checkpoint is loaded in `model.dtype`."""

FINITE_ELEMENTS = 2**22
"""Elements looked at together: the answer takes memory too."""


class Rung(IntEnum):
    """The rungs, in the order in which they are climbed."""

    BYTES = 1
    STRUCTURE = 2
    LOAD = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class StructureEvidence:
    """What rung 2 found, and the state digest it came by where every byte could be read."""

    faults: list[StrongroomError]
    state_digest: StateDigest | None


def check_bytes(
    storage: Storage, name: CheckpointName, *, expected_id: CheckpointId | None
) -> tuple[Committed | None, list[StrongroomError]]:
    """Rung 1: what was written is what is stored. Reads every byte once, in constant memory.

    Args:
        storage: what holds the checkpoint.
        name: which checkpoint.
        expected_id: the id the ledger recorded; None where it recorded none.

    Returns:
        The checkpoint, or None where its manifest cannot be trusted; and the faults.

    Raises:
        UnknownNameError: there is no such checkpoint, and the ledger knows of none.
    """
    manifest_key = f"{checkpoint_folder(name)}/{MANIFEST_FILE}"
    try:
        committed = read_checkpoint(storage, name)
    except UnknownNameError:
        if expected_id is None:
            raise
        missing = IntegrityError(
            "the manifest is missing",
            file=manifest_key,
            expected=str(expected_id),
            got="no such object",
        )
        return None, [missing]
    except (IntegrityError, FormatError) as error:
        return None, [error]
    if expected_id is not None and committed.checkpoint_id != expected_id:
        other = IntegrityError(
            "another manifest stands than the one the ledger recorded",
            file=manifest_key,
            expected=str(expected_id),
            got=str(committed.checkpoint_id),
        )
        return None, [other]
    return committed, stored_faults(storage, committed)


def check_structure(storage: Storage, committed: Committed) -> StructureEvidence:
    """Rung 2: the set is whole and of one moment, and every value is finite.

    Reads every chunk once, and computes the state digest on the way. That every shard is of this
    save, rung 1 has seen by its header.
    """
    from strongroom.checkpoint.reading.reader import CheckpointReader
    from strongroom.checkpoint.reading.state import state_digest

    faults: list[StrongroomError] = [
        VerificationError(f"checkpoint {committed.name}: {fault}")
        for fault in structure_faults(committed.manifest)
    ]
    not_finite: dict[str, int] = {}

    def look(entry: TensorEntry, part: Tensor) -> None:
        if count := _count_not_finite(part):
            not_finite[entry.name] = not_finite.get(entry.name, 0) + count

    digest = None
    try:
        digest = state_digest(CheckpointReader(storage, committed), look=look)
    except (IntegrityError, FormatError) as error:
        faults.append(error)
    faults += [
        VerificationError(
            f"checkpoint {committed.name}: tensor {tensor}: expected finite values, "
            f"got {count} that are NaN or infinite"
        )
        for tensor, count in not_finite.items()
    ]
    return StructureEvidence(faults=faults, state_digest=digest)


def check_load(
    storage: Storage, committed: Committed, *, record: RunRecord, cache: Path
) -> list[StrongroomError]:
    """Rung 3: a fresh model takes the checkpoint, gives the loss recorded at the save, and goes on.

    That it goes on, its optimizer shows by a step.

    Raises:
        ModelSourceError, StorageError: the base model is not to be had; that proves nothing.
        IntegrityError: the base model or the run's record was changed; that proves nothing either.
    """
    from strongroom.checkpoint.reading.reader import CheckpointReader
    from strongroom.verification.load import fill_model, fresh_model, probe_loss, trained
    from strongroom.verification.optimizer import optimizer_faults

    _check_record(committed, record)
    model = fresh_model(storage, record, cache)
    try:
        fill_model(model, storage, committed)
    except (IntegrityError, InputError) as error:
        return [error]
    expected = committed.manifest.metrics.get("probe_loss")
    got = probe_loss(model, record.probe)
    tolerance = probe_tolerance(record.config)
    # Written so that a NaN on either side is a fault.
    if expected is None or not abs(got - expected) <= tolerance * abs(expected):
        return [
            VerificationError(
                f"checkpoint {committed.name}: probe loss: expected {expected} within "
                f"{tolerance:g} (relative), as recorded at the save, got {got}; "
                "the loaded model is not the one that was saved"
            )
        ]
    try:
        faults = optimizer_faults(CheckpointReader(storage, committed), trained(model))
    except (IntegrityError, InputError) as error:
        return [error]
    return [VerificationError(f"checkpoint {committed.name}: {fault}") for fault in faults]


def _check_record(committed: Committed, record: RunRecord) -> None:
    expected = committed.manifest.inputs
    if record.inputs != expected or canonical.digest(record.config) != expected.config:
        raise IntegrityError(
            "the run's record is not the one its checkpoints were saved under",
            file=run_record_key(record.run),
            expected=f"inputs {expected.to_json()}",
            got=f"inputs {record.inputs.to_json()}, config {canonical.digest(record.config)}",
        )


def _count_not_finite(part: Tensor) -> int:
    if not part.is_floating_point():
        return 0
    flat = part.reshape(-1)
    count = 0
    for start in range(0, flat.numel(), FINITE_ELEMENTS):
        piece = flat[start : start + FINITE_ELEMENTS]
        finite = (piece.float() if piece.itemsize == 1 else piece).isfinite()  # none for float8
        count += piece.numel() - int(finite.sum())
    return count


def probe_tolerance(config: JsonObject) -> float:
    """Return how far the probe's loss may be from the recorded one, relative, for a run."""
    train = config["train"]
    if train.get("fsdp2", {}).get("float8", "off") != "off":
        return TOLERANCE["float8"]
    return TOLERANCE[train.get("compute_dtype") or config["model"]["dtype"]]
