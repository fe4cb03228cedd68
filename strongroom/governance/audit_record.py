"""The audit record: what a stranger is told about one checkpoint, as data.

`audit` gathers it, `summary` puts it into plain words, `report` makes a page of it. Whatever is
absent is visible as absent: None, an empty tuple or a line in `faults`; nothing is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from strongroom.checkpoint.attempts import AttemptRecord
from strongroom.checkpoint.manifest import Manifest
from strongroom.checkpoint.run_record import RunRecord
from strongroom.evaluation.report import EvaluationReport
from strongroom.governance.approval import RecordedReview
from strongroom.governance.evidence import EvaluationEvidence, VerificationEvidence
from strongroom.governance.lineage import Lineage
from strongroom.governance.promotion import Decision, PromotionClaim
from strongroom.governance.review import Review
from strongroom.ledger.events import Event
from strongroom.ledger.facts import EvaluatedFact, PromotedFact, RunFact, VerifiedFact
from strongroom.ledger.head import TreeHead
from strongroom.ledger.history import CheckpointRecord
from strongroom.ledger.proof import InclusionProof
from strongroom.names import CheckpointId, CheckpointName
from strongroom.signing.envelope import SealedStatement
from strongroom.signing.keyring import Holder


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorGroup:
    """The tensors of one kind that a checkpoint holds."""

    name: str
    dtypes: tuple[str, ...]
    num_tensors: int
    num_elements: int
    num_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditedVerification:
    """One verification the ledger records, and its signed record; None where that is missing."""

    fact: VerifiedFact
    evidence: VerificationEvidence | None


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditedEvaluation:
    """One evaluation the ledger records, and its signed report; None where that is missing."""

    fact: EvaluatedFact
    evidence: EvaluationEvidence | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesPoint:
    """One checkpoint of the run and its newest evaluation; None where it has none to rely on."""

    record: CheckpointRecord
    report: EvaluationReport | None
    passed: bool | None
    subject: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditedReview:
    """One approval or rejection.

    Attributes:
        said: what the person signed; None where it is missing or malformed.
        counts: whether it counts now: as an approval, or as a rejection that blocks.
        reasons: why it does not count; empty where it does.
    """

    recorded: RecordedReview
    said: Review | None
    counts: bool
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditedPromotion:
    """One move of a stage to this checkpoint.

    Attributes:
        claim: what the service signed; None where it is missing or malformed.
        again: the decision made again from the ledger as it was at the move; None where the
            policy is not known here.
    """

    fact: PromotedFact
    claim: PromotionClaim | None
    again: Decision | None

    @property
    def faults(self) -> tuple[str, ...]:
        """Why the move does not hold when it is looked at again; empty where it does."""
        faults = []
        if self.claim is None:
            faults.append("its signed statement is missing")
        elif (self.claim.checkpoint_id, self.claim.stage, self.claim.policy) != (
            self.fact.checkpoint_id,
            self.fact.stage,
            self.fact.policy,
        ):
            faults.append("its signed statement says something else than the ledger")
        if self.again is None:
            faults.append(f"its policy {self.fact.policy.short} is not known here")
        else:
            faults += self.again.reasons
        return tuple(faults)


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditedEntry:
    """One ledger entry about the checkpoint; `fault` says why it is not proved, '' if it is."""

    index: int
    event: Event
    proof: InclusionProof | None
    fault: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditRecord:
    """One checkpoint, explained; see the fields' own types.

    Attributes:
        decisions: for each stage, in rising order, what its policy asks and what is found now.
    """

    generated: str
    release: str
    store_id: str
    name: CheckpointName
    checkpoint_id: CheckpointId
    record: CheckpointRecord
    run: RunRecord | None
    attempt: AttemptRecord | None
    run_fact: RunFact | None
    manifest: Manifest | None
    tensors: tuple[TensorGroup, ...]
    lineage: Lineage | None
    verifications: tuple[AuditedVerification, ...]
    verification: VerificationEvidence | None
    evaluations: tuple[AuditedEvaluation, ...]
    evaluation: EvaluationEvidence | None
    series: tuple[SeriesPoint, ...]
    reviews: tuple[AuditedReview, ...]
    decisions: tuple[Decision, ...]
    promotions: tuple[AuditedPromotion, ...]
    entries: tuple[AuditedEntry, ...]
    head: TreeHead
    attestations: tuple[SealedStatement, ...]
    signers: tuple[Holder, ...]
    faults: tuple[str, ...]

    @property
    def inexact(self) -> tuple[str, ...]:
        """Why what was trained may not equal, bit for bit, a run that never stopped."""
        of_run = () if self.run is None else self.run.inexact
        of_attempt = () if self.attempt is None else self.attempt.inexact
        return (*of_run, *of_attempt)

    @property
    def origin(self) -> str:
        """The name the ledger's tree heads are signed under."""
        return f"strongroom/{self.store_id}"
