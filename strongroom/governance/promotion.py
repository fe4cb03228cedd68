"""Whether a stage may move to a checkpoint: every rule of its policy, with what was found.

Pure: the caller reads ledger, manifest and attestations, calls `decide`, and acts on the answer.
The decision holds for what was passed in and for no later moment; whoever moves a stage decides
again at the move. Absent evidence is a refusal, never a pass.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from strongroom.canonical import JsonObject
from strongroom.checkpoint.manifest import Inputs, Manifest
from strongroom.errors import FormatError, InputError
from strongroom.governance.approval import ApprovalVerdict, judge_approvals, recorded_reviews
from strongroom.governance.evidence import Evidence, evidence_of
from strongroom.governance.policy import StagePolicy
from strongroom.governance.review import person_of
from strongroom.ledger.history import CheckpointRecord, History, RunFact
from strongroom.names import CheckpointId, CheckpointName, Digest
from strongroom.signing.envelope import SealedStatement
from strongroom.signing.statement import PROMOTION, Statement


@dataclass(frozen=True, kw_only=True, slots=True)
class PromotionContext:
    """Everything a decision looks at.

    Attributes:
        history: of the whole ledger, proved against its signed head.
        manifest: as it stands in the store now; None where it cannot be read.
        statements: every attestation of the checkpoint whose signature verifies under the keyring.
        now: RFC 3339 time of the decision.
    """

    checkpoint_id: CheckpointId
    history: History
    manifest: Manifest | None
    statements: tuple[SealedStatement, ...]
    now: str

    @property
    def record(self) -> CheckpointRecord | None:
        """What the ledger says of the checkpoint."""
        return self.history.records.get(self.checkpoint_id)

    @property
    def run(self) -> RunFact | None:
        """What the ledger says of the run that made it."""
        record = self.record
        return None if record is None else self.history.runs.get(record.name.run)


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleCheck:
    """One rule, whether it is met, and what was found."""

    rule: str
    met: bool
    found: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.found}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The answer, with every rule that was looked at.

    Attributes:
        evidence: digests of the attestations the decision rests on.
        approvals: which reviews counted; None where the checkpoint is not on record.
    """

    checkpoint_id: CheckpointId
    policy: StagePolicy
    checks: tuple[RuleCheck, ...]
    evidence: tuple[Digest, ...]
    approvals: ApprovalVerdict | None

    @property
    def allowed(self) -> bool:
        """Whether every rule is met."""
        return all(check.met for check in self.checks)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Every rule that is not met, with what was found; empty where it is allowed."""
        return tuple(str(check) for check in self.checks if not check.met)


def decide(context: PromotionContext, policy: StagePolicy) -> Decision:
    """Say whether the stage of `policy` may move to the checkpoint.

    Raises:
        FormatError: a service signed an attestation that is malformed.
    """
    record, run = context.record, context.run
    if record is None or run is None:
        found = "the ledger knows no such checkpoint" if record is None else "its run is not there"
        return Decision(
            checkpoint_id=context.checkpoint_id,
            policy=policy,
            checks=(RuleCheck(rule="on record in the ledger", met=False, found=found),),
            evidence=(),
            approvals=None,
        )
    evidence = evidence_of(record, context.statements)
    verdict = judge_approvals(
        recorded_reviews(record, context.statements),
        policy=policy,
        evidence=_acceptable(evidence, policy),
        author=run.author,
        now=context.now,
    )
    checks = [
        _committed(record),
        _manifest_stands(context),
        _inputs_agree(context, run),
        _not_quarantined(record),
        _verified(record, evidence, policy),
    ]
    if policy.needs_evaluation:
        checks.append(_evaluated(record, evidence, run))
    if policy.needs_stage is not None:
        checks.append(_was_in_stage(context, policy.needs_stage))
    if policy.approvals:
        checks.append(_approved(verdict, policy))
    checks.append(_not_rejected(verdict))
    return Decision(
        checkpoint_id=context.checkpoint_id,
        policy=policy,
        checks=tuple(checks),
        evidence=evidence.digests,
        approvals=verdict,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class PromotionClaim:
    """What the service signs when a stage moves: what the decision rested on.

    Attributes:
        approvals: digests of the approvals that counted.
        replaces: the checkpoint that held the stage before; None for none.
    """

    checkpoint_id: CheckpointId
    stage: str
    policy: Digest
    evidence: tuple[Digest, ...]
    approvals: tuple[Digest, ...]
    replaces: CheckpointId | None

    @classmethod
    def of(cls, decision: Decision, *, replaces: CheckpointId | None) -> PromotionClaim:
        """Put an allowed decision into words that can be signed.

        Raises:
            InputError: the decision was a refusal.
        """
        if not decision.allowed or decision.approvals is None:
            raise InputError(
                f"promotion of {decision.checkpoint_id.short} to {decision.policy.stage}: "
                "a refusal cannot be signed as a promotion"
            )
        return cls(
            checkpoint_id=decision.checkpoint_id,
            stage=decision.policy.stage,
            policy=decision.policy.digest,
            evidence=decision.evidence,
            approvals=tuple(item.attestation for item in decision.approvals.counted),
            replaces=replaces,
        )

    def to_statement(self, name: CheckpointName) -> Statement:
        """Return the statement to be signed; `name` is what people call the checkpoint."""
        predicate: JsonObject = {
            "checkpoint_id": str(self.checkpoint_id),
            "stage": self.stage,
            "policy": str(self.policy),
            "evidence": [str(digest) for digest in self.evidence],
            "approvals": [str(digest) for digest in self.approvals],
            "replaces": None if self.replaces is None else str(self.replaces),
        }
        return Statement(
            subject_name=str(name),
            subject=self.checkpoint_id,
            predicate_type=PROMOTION,
            predicate=predicate,
        )

    @classmethod
    def from_statement(cls, statement: Statement) -> PromotionClaim:
        """Read a promotion statement.

        Raises:
            FormatError: another type, or a field is missing or malformed.
        """
        if statement.predicate_type != PROMOTION:
            raise FormatError(
                f"promotion: expected a statement of type {PROMOTION}, "
                f"got {statement.predicate_type}"
            )
        said = statement.predicate
        try:
            replaces = said["replaces"]
            return cls(
                checkpoint_id=CheckpointId(Digest.parse(said["checkpoint_id"])),
                stage=said["stage"],
                policy=Digest.parse(said["policy"]),
                evidence=tuple(Digest.parse(text) for text in said["evidence"]),
                approvals=tuple(Digest.parse(text) for text in said["approvals"]),
                replaces=None if replaces is None else CheckpointId(Digest.parse(replaces)),
            )
        except (AttributeError, KeyError, TypeError, InputError) as error:
            raise FormatError(f"promotion: a field is missing or malformed: {error!r}") from error


def _acceptable(evidence: Evidence, policy: StagePolicy) -> dict[str, AbstractSet[Digest]]:
    """Return, for each kind of evidence, the digests of which an approval must name one.

    Verifying again does not make an approval void: the id binds the bytes, so any passing record
    that climbed as high will do. An evaluation is a judgement; only the one in force will do.
    """
    kinds: dict[str, AbstractSet[Digest]] = {
        "verification": {
            item.attestation
            for item in evidence.verifications
            if item.reaches(policy.required_rung)
        }
    }
    if policy.needs_evaluation:
        in_force = evidence.evaluation
        kinds["evaluation"] = set() if in_force is None else {in_force.attestation}
    return kinds


def _committed(record: CheckpointRecord) -> RuleCheck:
    committed = record.committed
    return RuleCheck(
        rule="on record in the ledger",
        met=committed is not None,
        found="its commit was never recorded; reconcile the ledger first"
        if committed is None
        else f"committed at entry {committed.index}",
    )


def _manifest_stands(context: PromotionContext) -> RuleCheck:
    if context.manifest is None:
        met, found = False, "its manifest cannot be read"
    elif context.manifest.checkpoint_id != context.checkpoint_id:
        met, found = False, f"the store holds {context.manifest.checkpoint_id.short} in its place"
    else:
        met, found = True, f"it has the id {context.checkpoint_id.short}"
    return RuleCheck(rule="its manifest is the one that was committed", met=met, found=found)


def _inputs_agree(context: PromotionContext, run: RunFact) -> RuleCheck:
    recorded = Inputs(
        base_model=run.base_model, dataset=run.dataset, tokenizer=run.tokenizer, config=run.config
    )
    if context.manifest is None:
        met, found = False, "its manifest cannot be read"
    else:
        ours, theirs = context.manifest.inputs.to_json(), recorded.to_json()
        other = [name for name in theirs if ours.get(name) != theirs[name]]
        met = not other
        found = f"it names another {', '.join(other)}" if other else "all four digests agree"
    return RuleCheck(rule="made from the inputs its run recorded", met=met, found=found)


def _not_quarantined(record: CheckpointRecord) -> RuleCheck:
    return RuleCheck(
        rule="not in quarantine",
        met=record.quarantined is None,
        found="it never was" if record.quarantined is None else record.quarantined,
    )


def _verified(record: CheckpointRecord, evidence: Evidence, policy: StagePolicy) -> RuleCheck:
    in_force = evidence.verification
    if record.verified is None:
        met, found = False, "it was never verified"
    elif in_force is None:
        met, found = (
            False,
            (
                f"the signed record {record.verified.attestation.short} that the ledger names is "
                "missing, or says something else"
            ),
        )
    elif not in_force.passed:
        met, found = False, f"a verification failed above rung {in_force.highest}"
    else:
        met = in_force.reaches(policy.required_rung)
        found = f"passed up to rung {in_force.highest}"
    return RuleCheck(rule=f"verified up to rung {policy.required_rung}", met=met, found=found)


def _evaluated(record: CheckpointRecord, evidence: Evidence, run: RunFact) -> RuleCheck:
    in_force = evidence.evaluation
    if record.evaluated is None:
        met, found = False, "it was never evaluated"
    elif in_force is None:
        met, found = (
            False,
            (
                f"the signed report {record.evaluated.attestation.short} that the ledger names is "
                "missing, or says something else"
            ),
        )
    elif (in_force.report.dataset, in_force.report.base_model) != (run.dataset, run.base_model):
        met, found = False, "the newest evaluation used another dataset or base model than its run"
    else:
        met = in_force.passed
        found = "; ".join(in_force.reasons) or ("passed" if met else "failed")
    return RuleCheck(rule="evaluated and passed", met=met, found=found)


def _was_in_stage(context: PromotionContext, stage: str) -> RuleCheck:
    moves = [
        move
        for move in context.history.stage_moves(stage)
        if move.checkpoint_id == context.checkpoint_id
    ]
    return RuleCheck(
        rule=f"in {stage} now or before",
        met=bool(moves),
        found=f"moved there at entry {moves[-1].index}" if moves else "it never was",
    )


def _approved(verdict: ApprovalVerdict, policy: StagePolicy) -> RuleCheck:
    found = f"{len(verdict.counted)} of {policy.approvals}"
    if verdict.persons:
        found += f" ({', '.join(verdict.persons)})"
    for refused in verdict.refused:
        if refused.approves:
            whose = person_of(refused.actor) or refused.actor
            found += f"; that of {whose} does not count: {', '.join(refused.reasons)}"
    people = "person" if policy.approvals == 1 else "different persons"
    return RuleCheck(
        rule=f"approved by {policy.approvals} {people}, none of them the run's author",
        met=len(verdict.counted) >= policy.approvals,
        found=found,
    )


def _not_rejected(verdict: ApprovalVerdict) -> RuleCheck:
    return RuleCheck(
        rule="no rejection stands",
        met=not verdict.rejections,
        found="; ".join(_rejection(item.person, item.comment) for item in verdict.rejections)
        or "none",
    )


def _rejection(person: str, comment: str) -> str:
    return f"{person} rejected it" + (f': "{comment}"' if comment else "")
