"""Gather an audit record from what was already read.

Pure: no storage, no private keys, no tensors. Nothing is believed because it was passed in: every
ledger entry about the checkpoint is proved against the signed tree head, every promotion is decided
again as of the moment it was made, and documents that contradict the ledger are named as faults.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import strongroom
from strongroom import canonical
from strongroom.checkpoint.attempts import AttemptRecord
from strongroom.checkpoint.entries import TensorEntry
from strongroom.checkpoint.manifest import Inputs, Manifest
from strongroom.checkpoint.run_record import RunRecord
from strongroom.errors import FormatError, StrongroomError, UnknownNameError
from strongroom.governance.approval import recorded_reviews
from strongroom.governance.audit_record import (
    AuditedEntry,
    AuditedEvaluation,
    AuditedPromotion,
    AuditedReview,
    AuditedVerification,
    AuditRecord,
    SeriesPoint,
    TensorGroup,
)
from strongroom.governance.evidence import evaluations_of, evidence_of, verifications_of
from strongroom.governance.lineage import Lineage, trace
from strongroom.governance.policy import DEFAULT_POLICIES, StagePolicy
from strongroom.governance.promotion import Decision, PromotionClaim, PromotionContext, decide
from strongroom.governance.review import Review
from strongroom.ledger.events import Event
from strongroom.ledger.facts import (
    CheckpointFact,
    EvaluatedFact,
    PromotedFact,
    RunFact,
    VerifiedFact,
    fact_of,
)
from strongroom.ledger.head import TreeHead
from strongroom.ledger.history import CheckpointRecord, History
from strongroom.ledger.proof import InclusionProof
from strongroom.names import CheckpointId, RunKey
from strongroom.signing.envelope import SealedStatement
from strongroom.signing.keyring import Holder, Keyring


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditSource:
    """What the caller has read.

    Attributes:
        store_id: of the store; the ledger's origin follows from it.
        events: the whole ledger, in order, as covered by `head`.
        head: the signed tree head.
        proofs: inclusion proofs of the entries about the checkpoint, against `head`.
        keyring: who is trusted.
        run: the run's record, None where it cannot be read.
        manifest: the checkpoint's manifest as stored, None where it cannot be read.
        statements: attestations whose signatures verify, by the checkpoint they are about: the
            checkpoint itself and the others of its run.
        faults: what could not be read, in words.
        now: RFC 3339 time of the audit.
    """

    store_id: str
    events: Sequence[Event]
    head: TreeHead
    proofs: Sequence[InclusionProof]
    keyring: Keyring
    run: RunRecord | None
    attempt: AttemptRecord | None = None
    manifest: Manifest | None
    statements: Mapping[CheckpointId, Sequence[SealedStatement]]
    faults: Sequence[str] = ()
    now: str


def gather(
    checkpoint_id: CheckpointId,
    source: AuditSource,
    policies: Mapping[str, StagePolicy] = DEFAULT_POLICIES,
) -> AuditRecord:
    """Explain one checkpoint.

    Args:
        checkpoint_id: of a checkpoint the ledger names.
        source: what was read.
        policies: of the stages, in rising order.

    Raises:
        UnknownNameError: the ledger says nothing about such a checkpoint.
        FormatError: a service signed an attestation that is malformed.
    """
    history = History.of(source.events)
    record = history.records.get(checkpoint_id)
    if record is None:
        raise UnknownNameError(
            f"checkpoint {checkpoint_id.short}: the ledger says nothing about it; "
            "`strongroom ls` lists the checkpoints"
        )
    statements = tuple(source.statements.get(checkpoint_id, ()))
    facts = [fact_of(index, source.events[index]) for index in record.indexes]
    about = [fact for fact in facts if isinstance(fact, CheckpointFact)]
    run_fact = history.runs.get(record.name.run)
    evidence = evidence_of(record, statements)
    context = PromotionContext(
        checkpoint_id=checkpoint_id,
        history=history,
        manifest=source.manifest,
        statements=statements,
        now=source.now,
    )
    decisions = tuple(decide(context, policy) for policy in policies.values())
    return AuditRecord(
        generated=source.now,
        release=strongroom.__version__,
        store_id=source.store_id,
        name=record.name,
        checkpoint_id=checkpoint_id,
        record=record,
        run=source.run,
        attempt=source.attempt,
        run_fact=run_fact,
        manifest=source.manifest,
        tensors=_groups(() if source.manifest is None else source.manifest.tensors),
        lineage=None if run_fact is None else _lineage(checkpoint_id, run_fact, history),
        verifications=_verifications(about, statements),
        verification=evidence.verification,
        evaluations=_evaluations(about, statements),
        evaluation=evidence.evaluation,
        series=_series(record, history, source),
        reviews=_reviews(record, statements, decisions),
        decisions=decisions,
        promotions=tuple(
            _promotion(fact, source, statements, policies)
            for fact in about
            if isinstance(fact, PromotedFact)
        ),
        entries=tuple(_entries(entries_about(history, checkpoint_id), source)),
        head=source.head,
        attestations=statements,
        signers=_signers(statements, entries_about(history, checkpoint_id), source),
        faults=(*source.faults, *_contradictions(source, run_fact, checkpoint_id)),
    )


def entries_about(history: History, checkpoint_id: CheckpointId) -> tuple[int, ...]:
    """Return the ledger indexes an audit of a checkpoint proves: its run's creation and its own."""
    record = history.records.get(checkpoint_id)
    if record is None:
        return ()
    run = history.runs.get(record.name.run)
    return record.indexes if run is None else (run.index, *record.indexes)


def _groups(tensors: Sequence[TensorEntry]) -> tuple[TensorGroup, ...]:
    """Sum tensors up by the first part of their names: `model`, `optim`, `rng`."""
    names = sorted({tensor.name.partition(".")[0] for tensor in tensors})
    members = {
        name: [tensor for tensor in tensors if tensor.name.partition(".")[0] == name]
        for name in names
    }
    return tuple(
        TensorGroup(
            name=name,
            dtypes=tuple(sorted({tensor.dtype for tensor in group})),
            num_tensors=len(group),
            num_elements=sum(math.prod(tensor.shape) for tensor in group),
            num_bytes=sum(tensor.num_bytes for tensor in group),
        )
        for name, group in members.items()
    )


def _lineage(checkpoint_id: CheckpointId, run: RunFact, history: History) -> Lineage:
    return trace(
        checkpoint_id,
        run=run.key,
        inputs=_inputs(run),
        attempts=run.attempts,
        checkpoints=_of_run(history, run.key),
    )


def _inputs(run: RunFact) -> Inputs:
    return Inputs(
        base_model=run.base_model, dataset=run.dataset, tokenizer=run.tokenizer, config=run.config
    )


def _of_run(history: History, run: RunKey) -> list[CheckpointRecord]:
    return [record for record in history.records.values() if record.name.run == run]


def _verifications(
    facts: Sequence[CheckpointFact], statements: Sequence[SealedStatement]
) -> tuple[AuditedVerification, ...]:
    verified = [fact for fact in facts if isinstance(fact, VerifiedFact)]
    signed = {
        item.attestation: item
        for fact in verified[:1]
        for item in verifications_of(fact.checkpoint_id, statements)
    }
    return tuple(
        AuditedVerification(fact=fact, evidence=signed.get(fact.attestation)) for fact in verified
    )


def _evaluations(
    facts: Sequence[CheckpointFact], statements: Sequence[SealedStatement]
) -> tuple[AuditedEvaluation, ...]:
    evaluated = [fact for fact in facts if isinstance(fact, EvaluatedFact)]
    signed = {
        item.attestation: item
        for fact in evaluated[:1]
        for item in evaluations_of(fact.checkpoint_id, statements)
    }
    return tuple(
        AuditedEvaluation(fact=fact, evidence=signed.get(fact.attestation)) for fact in evaluated
    )


def _series(
    subject: CheckpointRecord, history: History, source: AuditSource
) -> tuple[SeriesPoint, ...]:
    """Return every checkpoint of the run with the evaluation in force, by step and attempt."""
    records = _of_run(history, subject.name.run)
    points = []
    for record in sorted(records, key=lambda item: (item.name.step, item.name.attempt)):
        statements = source.statements.get(record.checkpoint_id, ())
        evaluation = evidence_of(record, statements).evaluation
        points.append(
            SeriesPoint(
                record=record,
                report=None if evaluation is None else evaluation.report,
                passed=None if evaluation is None else evaluation.passed,
                subject=record.checkpoint_id == subject.checkpoint_id,
            )
        )
    return tuple(points)


def _reviews(
    record: CheckpointRecord,
    statements: Sequence[SealedStatement],
    decisions: Sequence[Decision],
) -> tuple[AuditedReview, ...]:
    refused = {
        item.index: item.reasons
        for decision in decisions
        if decision.approvals is not None
        for item in decision.approvals.refused
    }
    reviews = []
    for recorded in recorded_reviews(record, statements):
        said = None
        if recorded.sealed is not None:
            try:
                said = Review.from_statement(recorded.sealed.statement)
            except FormatError:
                said = None  # its reason stands among those why it does not count
        reasons = refused.get(recorded.fact.index, ())
        reviews.append(
            AuditedReview(recorded=recorded, said=said, counts=not reasons, reasons=reasons)
        )
    return tuple(reviews)


def _promotion(
    fact: PromotedFact,
    source: AuditSource,
    statements: Sequence[SealedStatement],
    policies: Mapping[str, StagePolicy],
) -> AuditedPromotion:
    """Decide a promotion again: from what the ledger named before its entry, at its time."""
    claim = None
    for sealed in statements:
        if sealed.digest == fact.attestation:
            claim = PromotionClaim.from_statement(sealed.statement)
    policy = next((item for item in policies.values() if item.digest == fact.policy), None)
    again = None
    if policy is not None:
        before = source.events[: fact.index]
        named = {event.facts.get("attestation") for event in before}
        context = PromotionContext(
            checkpoint_id=fact.checkpoint_id,
            history=History.of(before),
            manifest=source.manifest,
            statements=tuple(sealed for sealed in statements if str(sealed.digest) in named),
            now=fact.time,
        )
        again = decide(context, policy)
    return AuditedPromotion(fact=fact, claim=claim, again=again)


def _entries(indexes: Sequence[int], source: AuditSource) -> Iterator[AuditedEntry]:
    """Yield these entries with their proofs, checked."""
    proofs = {proof.index: proof for proof in source.proofs}
    for index in indexes:
        proof = proofs.get(index)
        yield AuditedEntry(
            index=index,
            event=source.events[index],
            proof=proof,
            fault=_proof_fault(proof, source.events[index], source),
        )


def _proof_fault(proof: InclusionProof | None, event: Event, source: AuditSource) -> str:
    if proof is None:
        return "there is no inclusion proof for it"
    if proof.head != source.head.note:
        return "its proof belongs to another tree head"
    try:
        proved = proof.check(f"strongroom/{source.store_id}", source.keyring)
    except StrongroomError as error:
        return str(error)
    return "" if proved == event else "its proof is about another event"


def _signers(
    statements: Sequence[SealedStatement], indexes: Sequence[int], source: AuditSource
) -> tuple[Holder, ...]:
    """Return whoever signed an attestation or the tree head, or is named by one of the entries."""
    signed = {sealed.holder for sealed in statements}
    actors = {source.head.signed_by} | {source.events[index].actor for index in indexes}
    signed |= {holder for holder in source.keyring if holder.actor in actors}
    return tuple(sorted(signed, key=lambda holder: (holder.role, holder.name, holder.key_id)))


def _contradictions(
    source: AuditSource, run_fact: RunFact | None, checkpoint_id: CheckpointId
) -> Iterator[str]:
    """Yield what the stored documents say against the ledger."""
    if run_fact is None:
        yield "The ledger has no entry for the run that made this checkpoint."
    if source.manifest is None:
        yield "The checkpoint's manifest cannot be read."
    elif source.manifest.checkpoint_id != checkpoint_id:
        yield (
            f"The store holds the manifest of {source.manifest.checkpoint_id} in this "
            "checkpoint's place."
        )
    if source.run is None:
        yield "The run's record cannot be read."
        return
    if canonical.digest(source.run.config) != source.run.inputs.config:
        yield "The configuration in the run's record is not the one its digest names."
    if run_fact is not None and source.run.inputs != _inputs(run_fact):
        yield "The run's record names other inputs than the ledger does."
    if run_fact is not None and source.run.author != run_fact.author:
        yield (
            f"The run's record names {source.run.author!r} as author, the ledger "
            f"{run_fact.author!r}; the ledger is believed."
        )
