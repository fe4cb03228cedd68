"""Move a stage to a checkpoint, and let people say whether it may.

Promotion trusts nothing that was decided earlier: it proves the ledger, reads the attestations,
re-reads the checkpoint's bytes and structure, decides, signs, and only then records the move. A
refusal is recorded too, with its reasons.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from strongroom.checkpoint.catalogue import Committed
from strongroom.clock import now_utc
from strongroom.custody.context import Custody
from strongroom.custody.verify import verify_checkpoint
from strongroom.errors import PolicyError
from strongroom.governance.evidence import evidence_of
from strongroom.governance.policy import policy_of
from strongroom.governance.promotion import Decision, PromotionClaim, PromotionContext, decide
from strongroom.governance.review import Review, expiry
from strongroom.ledger.attestations import attestations_of
from strongroom.ledger.events import EventKind
from strongroom.names import CheckpointId, Digest
from strongroom.verification.ladder import Rung, verify

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Promotion:
    """A stage that points to this checkpoint.

    Attributes:
        replaces: what the stage pointed to before; None where nothing, or this checkpoint itself.
        moved: False where the stage pointed here already and nothing was done.
    """

    checkpoint_id: CheckpointId
    stage: str
    policy: Digest
    replaces: CheckpointId | None
    moved: bool


def judge_promotion(custody: Custody, committed: Committed, stage: str) -> Decision:
    """Say whether the stage may move, and why; changes nothing and reads no shard."""
    context = PromotionContext(
        checkpoint_id=committed.checkpoint_id,
        history=custody.history(),
        manifest=committed.manifest,
        statements=tuple(
            attestations_of(custody.storage, committed.checkpoint_id, custody.keys.keyring())
        ),
        now=now_utc(),
    )
    return decide(context, policy_of(stage))


def promote_checkpoint(custody: Custody, committed: Committed, stage: str) -> Promotion:
    """Move `stage` to a checkpoint if its policy allows it.

    Raises:
        PolicyError: a rule is not met; every one that is not is named. The refusal is recorded.
        UnknownNameError: there is no such stage.
    """
    _recheck_bytes(custody, committed)
    decision = judge_promotion(custody, committed, stage)
    held_by = custody.history().in_stage(stage)
    if not decision.allowed:
        _record_refusal(custody, committed, stage, decision)
        raise PolicyError(f"promote {committed.name.short} to {stage}", list(decision.reasons))
    replaces = None if held_by == committed.checkpoint_id else held_by
    promotion = Promotion(
        checkpoint_id=committed.checkpoint_id,
        stage=stage,
        policy=decision.policy.digest,
        replaces=replaces,
        moved=held_by != committed.checkpoint_id,
    )
    if promotion.moved:
        _record_move(custody, committed, decision, promotion)
    return promotion


def review_checkpoint(  # noqa: PLR0913 -- who says what of which checkpoint for which stage
    custody: Custody,
    committed: Committed,
    stage: str,
    *,
    person: str,
    approves: bool,
    comment: str = "",
) -> Review:
    """Sign and record one person's approval or rejection, bound to the evidence that stands now.

    Raises:
        UnknownNameError: no such stage, or no key of that person is here.
        PolicyError: there is no verification on record that an approval could rest on.
    """
    signer = custody.keys.person_signer(person)
    policy = policy_of(stage)
    record = custody.history().records.get(committed.checkpoint_id)
    statements = attestations_of(custody.storage, committed.checkpoint_id, custody.keys.keyring())
    evidence = () if record is None else evidence_of(record, statements).digests
    if approves and not evidence:
        raise PolicyError(
            f"approve {committed.name.short} for {stage}",
            ["there is no signed verification or evaluation to rest on; verify it first"],
        )
    now = now_utc()
    review = Review(
        approves=approves,
        checkpoint_id=committed.checkpoint_id,
        stage=stage,
        policy=policy.digest,
        evidence=evidence,
        expires=expiry(now, policy.max_approval_days) if approves else None,
        comment=comment,
    )
    attestation = custody.attest(review.to_statement(committed.name), signer)
    custody.record(
        EventKind.CHECKPOINT_APPROVED if approves else EventKind.CHECKPOINT_REJECTED,
        checkpoint_id=committed.checkpoint_id,
        checkpoint=committed.name,
        actor=f"person:{person}",
        stage=stage,
        policy=str(policy.digest),
        attestation=str(attestation),
        expires=review.expires,
    )
    logger.info(
        "checkpoint reviewed: checkpoint=%s stage=%s person=%s approves=%s",
        committed.name,
        stage,
        person,
        approves,
    )
    return review


def _recheck_bytes(custody: Custody, committed: Committed) -> None:
    """Read every byte again; what no longer holds is verified on record, hence quarantined."""
    report = verify(
        custody.storage,
        committed.name,
        expected_id=committed.checkpoint_id,
        up_to=Rung.STRUCTURE,
    )
    if not report.passed:
        verify_checkpoint(custody, committed.name, up_to=Rung.STRUCTURE)


def _record_refusal(custody: Custody, committed: Committed, stage: str, decision: Decision) -> None:
    custody.record(
        EventKind.PROMOTION_REFUSED,
        checkpoint_id=committed.checkpoint_id,
        checkpoint=committed.name,
        stage=stage,
        policy=str(decision.policy.digest),
        reasons=list(decision.reasons),
    )
    logger.info(
        "promotion refused: checkpoint=%s stage=%s reasons=%s",
        committed.name,
        stage,
        "; ".join(decision.reasons),
    )


def _record_move(
    custody: Custody, committed: Committed, decision: Decision, promotion: Promotion
) -> None:
    claim = PromotionClaim.of(decision, replaces=promotion.replaces)
    attestation = custody.attest(claim.to_statement(committed.name))
    custody.record(
        EventKind.CHECKPOINT_PROMOTED,
        checkpoint_id=committed.checkpoint_id,
        checkpoint=committed.name,
        stage=promotion.stage,
        policy=str(promotion.policy),
        attestation=str(attestation),
        replaces=None if promotion.replaces is None else str(promotion.replaces),
    )
    logger.info(
        "checkpoint promoted: checkpoint=%s stage=%s replaces=%s",
        committed.name,
        promotion.stage,
        promotion.replaces,
    )
