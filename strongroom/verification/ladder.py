"""The verification ladder: climb rung after rung, stop at the first that does not hold.

`verify` returns a report; signing it, appending it to the ledger and quarantining are for its
caller. A rung is climbed only on the one below: what is not stored as written needs no loading.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from pathlib import Path

from strongroom.canonical import JsonObject
from strongroom.checkpoint.run_record import RunRecord
from strongroom.errors import InputError, IntegrityError, StrongroomError, VerificationError
from strongroom.names import CheckpointId, CheckpointName, StateDigest
from strongroom.storage.base import Storage
from strongroom.verification.rungs import Rung, check_bytes, check_load, check_structure

__all__ = ["Rung", "RungResult", "VerificationReport", "verify"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class RungResult:
    """How one rung went.

    Attributes:
        findings: what does not hold, each with its place; empty exactly if the rung passed.
        faults: the same as errors, with file, tensor, offset, expected and got as attributes.
    """

    rung: Rung
    seconds: float
    findings: tuple[str, ...]
    faults: tuple[StrongroomError, ...] = field(default=(), compare=False, repr=False)

    @property
    def passed(self) -> bool:
        """Whether the rung holds."""
        return not self.findings


@dataclass(frozen=True, kw_only=True, slots=True)
class VerificationReport:
    """How far up one checkpoint got.

    Attributes:
        checkpoint_id: None where its manifest could not be trusted.
        rungs: those climbed, in order; only the last can have failed.
        state_digest: what the checkpoint means; None where rung 2 was not climbed, or not whole.
    """

    name: CheckpointName
    checkpoint_id: CheckpointId | None
    rungs: tuple[RungResult, ...]
    state_digest: StateDigest | None

    @property
    def passed(self) -> bool:
        """Whether every rung that was asked for holds."""
        return all(result.passed for result in self.rungs)

    @property
    def highest(self) -> int:
        """The number of the highest rung that holds; 0 where not even the first does."""
        return max((int(result.rung) for result in self.rungs if result.passed), default=0)

    @property
    def failed_at(self) -> Rung | None:
        """The rung that does not hold."""
        return next((result.rung for result in self.rungs if not result.passed), None)

    @property
    def findings(self) -> tuple[str, ...]:
        """Everything that does not hold, each with its place."""
        return tuple(finding for result in self.rungs for finding in result.findings)

    @property
    def seconds(self) -> float:
        """Seconds spent on all rungs."""
        return sum(result.seconds for result in self.rungs)

    def raise_for_findings(self) -> None:
        """Return if the checkpoint passed.

        Raises:
            IntegrityError: the first finding is of changed bytes; it carries the place.
            VerificationError: the findings are of another kind; the message lists them.
        """
        faults = [fault for result in self.rungs for fault in result.faults]
        if faults and isinstance(faults[0], IntegrityError):
            raise faults[0]
        if not self.passed:
            listed = "\n".join(f"  - {finding}" for finding in self.findings)
            raise VerificationError(
                f"checkpoint {self.name}: rung {int(self.failed_at or 0)} does not hold:\n{listed}"
            )

    def to_json(self) -> JsonObject:
        """Return it as JSON: the predicate of a verification record."""
        return {
            "checkpoint": str(self.name),
            "checkpoint_id": None if self.checkpoint_id is None else str(self.checkpoint_id),
            "passed": self.passed,
            "highest": self.highest,
            "state_digest": None if self.state_digest is None else str(self.state_digest),
            "rungs": [
                {
                    "rung": int(result.rung),
                    "name": result.rung.name.lower(),
                    "passed": result.passed,
                    "seconds": round(result.seconds, 6),
                    "findings": list(result.findings),
                }
                for result in self.rungs
            ],
        }


def verify(  # noqa: PLR0913 -- what is verified, against what, and with what
    storage: Storage,
    name: CheckpointName,
    *,
    expected_id: CheckpointId | None,
    up_to: Rung,
    record: RunRecord | None = None,
    cache: Path | None = None,
) -> VerificationReport:
    """Climb the ladder for one checkpoint.

    Args:
        storage: what holds the checkpoint.
        name: which checkpoint.
        expected_id: the id the ledger recorded at the commit; None where it recorded none.
        up_to: the last rung to climb.
        record: the run's record; needed from rung 3.
        cache: a folder for a verified copy of the base model; needed from rung 3.

    Raises:
        UnknownNameError: there is no such checkpoint, and the ledger knows of none.
        StorageError, ModelSourceError: this machine cannot climb; that proves nothing.
    """
    started = time.perf_counter()
    committed, faults = check_bytes(storage, name, expected_id=expected_id)
    results = [_result(Rung.BYTES, started, faults)]
    digest = None
    if committed is not None and not faults and up_to >= Rung.STRUCTURE:
        started = time.perf_counter()
        evidence = check_structure(storage, committed)
        digest, faults = evidence.state_digest, evidence.faults
        results.append(_result(Rung.STRUCTURE, started, faults))
    if committed is not None and not faults and up_to >= Rung.LOAD:
        if record is None or cache is None:
            raise InputError(f"checkpoint {name}: rung 3 needs the run's record and a cache folder")
        started = time.perf_counter()
        faults = check_load(storage, committed, record=record, cache=cache)
        results.append(_result(Rung.LOAD, started, faults))
    report = VerificationReport(
        name=name,
        checkpoint_id=None if committed is None else committed.checkpoint_id,
        rungs=tuple(results),
        state_digest=digest,
    )
    logger.info(
        "ladder climbed: checkpoint=%s passed=%s highest=%d findings=%d seconds=%.3f",
        name,
        report.passed,
        report.highest,
        len(report.findings),
        report.seconds,
    )
    return report


def _result(rung: Rung, started: float, faults: list[StrongroomError]) -> RungResult:
    return RungResult(
        rung=rung,
        seconds=time.perf_counter() - started,
        findings=tuple(map(str, faults)),
        faults=tuple(faults),
    )
