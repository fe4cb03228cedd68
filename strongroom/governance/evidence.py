"""What services attested about one checkpoint, read from signed statements; and what is in force.

The ledger's newest entry must have its signed statement in the store, and the two must say the
same; else there is no evidence at all. An evaluation in force is that newest one. A verification in
force is the one that climbed highest, as long as none failed: the id binds the bytes, so looking
again at the lower rungs takes nothing away from what was proved, while one failure takes all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from strongroom.canonical import JsonObject
from strongroom.errors import FormatError, InputError
from strongroom.evaluation.report import EvaluationReport
from strongroom.ledger.history import CheckpointRecord
from strongroom.names import CheckpointId, Digest, StateDigest
from strongroom.signing.envelope import SealedStatement
from strongroom.signing.keyring import Holder, Role
from strongroom.signing.statement import EVALUATION, VERIFICATION

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class RungEvidence:
    """How one rung of the verification ladder went."""

    rung: int
    passed: bool
    seconds: float
    findings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class VerificationEvidence:
    """A signed verification record.

    Attributes:
        attestation: digest of the signed statement.
        rungs: those climbed, in order; only the last can have failed.
    """

    attestation: Digest
    signer: Holder
    rungs: tuple[RungEvidence, ...]
    state_digest: StateDigest | None

    @property
    def passed(self) -> bool:
        """Whether there are rungs and every one of them passed."""
        return bool(self.rungs) and all(rung.passed for rung in self.rungs)

    @property
    def highest(self) -> int:
        """The highest rung that holds; 0 where not even the first does."""
        return max((rung.rung for rung in self.rungs if rung.passed), default=0)

    def reaches(self, required: int) -> bool:
        """Whether it passed, and looked at every rung from 1 to `required`."""
        return self.passed and {rung.rung for rung in self.rungs} >= set(range(1, required + 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationEvidence:
    """A signed evaluation: what was measured, and what the run's own rules said of it."""

    attestation: Digest
    signer: Holder
    report: EvaluationReport
    passed: bool
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What is in force for one checkpoint.

    Attributes:
        verification: the one to rely on, a failed one if any failed; None where there is none.
        evaluation: the newest on record; None where there is none.
        verifications: every signed verification of the checkpoint that is in the store.
    """

    verification: VerificationEvidence | None
    evaluation: EvaluationEvidence | None
    verifications: tuple[VerificationEvidence, ...]

    @property
    def digests(self) -> tuple[Digest, ...]:
        """What an approval given now must name: the statements in force."""
        found = (self.verification, self.evaluation)
        return tuple(item.attestation for item in found if item is not None)


def evidence_of(record: CheckpointRecord, statements: Sequence[SealedStatement]) -> Evidence:
    """Return what is in force for the checkpoint of `record`.

    Args:
        record: what the ledger says of the checkpoint.
        statements: every signed statement about it that is in the store.

    Raises:
        FormatError: a service signed a statement that is malformed.
    """
    verifications = verifications_of(record.checkpoint_id, statements)
    return Evidence(
        verification=_verification_in_force(record, verifications),
        evaluation=_evaluation_in_force(record, evaluations_of(record.checkpoint_id, statements)),
        verifications=verifications,
    )


def _verification_in_force(
    record: CheckpointRecord, verifications: Sequence[VerificationEvidence]
) -> VerificationEvidence | None:
    fact = record.verified
    newest = [
        item
        for item in verifications
        if fact is not None
        and item.attestation == fact.attestation
        and (item.passed, item.highest) == (fact.passed, fact.rung)
    ]
    if not newest:
        return None
    # A failure counts even where a crash kept it out of the ledger.
    failed = [item for item in (*newest, *verifications) if not item.passed]
    return failed[0] if failed else max((*newest, *verifications), key=lambda item: item.highest)


def _evaluation_in_force(
    record: CheckpointRecord, evaluations: Sequence[EvaluationEvidence]
) -> EvaluationEvidence | None:
    fact = record.evaluated
    for item in evaluations:
        if fact is not None and item.attestation == fact.attestation and item.passed == fact.passed:
            return item
    return None


def verifications_of(
    checkpoint_id: CheckpointId, statements: Sequence[SealedStatement]
) -> tuple[VerificationEvidence, ...]:
    """Return the verifications that services signed about this checkpoint."""
    sealed = _attested(VERIFICATION, checkpoint_id, statements)
    return tuple(_read(item, _verification) for item in sealed)


def evaluations_of(
    checkpoint_id: CheckpointId, statements: Sequence[SealedStatement]
) -> tuple[EvaluationEvidence, ...]:
    """Return the evaluations that services signed about this checkpoint."""
    sealed = _attested(EVALUATION, checkpoint_id, statements)
    found = [_read(item, _evaluation) for item in sealed]
    return tuple(item for item in found if item.report.checkpoint_id == checkpoint_id)


def _attested(
    predicate_type: str, checkpoint_id: CheckpointId, statements: Sequence[SealedStatement]
) -> list[SealedStatement]:
    return [
        sealed
        for sealed in statements
        if sealed.statement.predicate_type == predicate_type
        and sealed.statement.subject == checkpoint_id
        and sealed.holder.role is Role.SERVICE
    ]


def _read(sealed: SealedStatement, read: Callable[[SealedStatement, JsonObject], T]) -> T:
    try:
        return read(sealed, sealed.statement.predicate)
    except (AttributeError, KeyError, TypeError, ValueError, InputError) as error:
        raise FormatError(
            f"attestation {sealed.digest} ({sealed.statement.predicate_type}) signed by "
            f"{sealed.holder.actor}: a field is missing or malformed: {error!r}; use a release of "
            "strongroom that knows it"
        ) from error


def _verification(sealed: SealedStatement, said: JsonObject) -> VerificationEvidence:
    state_digest = said["state_digest"]
    return VerificationEvidence(
        attestation=sealed.digest,
        signer=sealed.holder,
        rungs=tuple(
            RungEvidence(
                rung=int(rung["rung"]),
                passed=rung["passed"] is True,
                seconds=float(rung["seconds"]),
                findings=tuple(str(finding) for finding in rung["findings"]),
            )
            for rung in said["rungs"]
        ),
        state_digest=None if state_digest is None else StateDigest(Digest.parse(state_digest)),
    )


def _evaluation(sealed: SealedStatement, said: JsonObject) -> EvaluationEvidence:
    return EvaluationEvidence(
        attestation=sealed.digest,
        signer=sealed.holder,
        report=EvaluationReport.from_json(said["report"]),
        passed=said["passed"] is True,
        reasons=tuple(str(reason) for reason in said["reasons"]),
    )
