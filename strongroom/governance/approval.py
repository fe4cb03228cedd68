"""Which approvals and rejections count for a stage.

A review counts only if its signed statement is in the store *and* the ledger
recorded it: a statement alone could be kept back, an entry alone could be invented.

Rules, in the order they are told:

- a service key attests, it never approves or rejects;
- persons are compared by person, not by key, and one person counts once;
- the run's author never counts;
- one signed statement is heard once: recording it again cannot undo what its person said since;
- an approval counts until it expires, and for the policy and the evidence it names, no other;
- a rejection by any person, the author too, blocks the stage until that same person approves later
  in the ledger. A rejection has no expiry, and one whose signed statement is gone still blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import timedelta

from strongroom.errors import FormatError
from strongroom.governance.policy import StagePolicy
from strongroom.governance.review import Review, instant, person_of
from strongroom.ledger.history import ApprovedFact, CheckpointRecord, RejectedFact
from strongroom.names import Digest
from strongroom.signing.envelope import SealedStatement
from strongroom.signing.keyring import Role

ReviewFact = ApprovedFact | RejectedFact


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedReview:
    """One review as the ledger recorded it, with its signed statement.

    Attributes:
        fact: the ledger's entry.
        sealed: None where the store no longer holds the statement, or its signature is not that
            of a key in the keyring.
    """

    fact: ReviewFact
    sealed: SealedStatement | None

    @property
    def approves(self) -> bool:
        """Whether the ledger calls it an approval."""
        return isinstance(self.fact, ApprovedFact)


@dataclass(frozen=True, kw_only=True, slots=True)
class CountedApproval:
    """An approval that counts."""

    person: str
    attestation: Digest
    expires: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RefusedReview:
    """A review that does not count (any more), with every reason; `index` is its ledger entry."""

    index: int
    actor: str
    approves: bool
    attestation: Digest
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class StandingRejection:
    """A rejection its person has not taken back; it blocks."""

    person: str
    attestation: Digest
    comment: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ApprovalVerdict:
    """Which reviews count for one stage."""

    counted: tuple[CountedApproval, ...]
    refused: tuple[RefusedReview, ...]
    rejections: tuple[StandingRejection, ...]

    @property
    def persons(self) -> tuple[str, ...]:
        """Who approved, each once."""
        return tuple(approval.person for approval in self.counted)


def recorded_reviews(
    record: CheckpointRecord, statements: Sequence[SealedStatement]
) -> tuple[RecordedReview, ...]:
    """Join the reviews the ledger records with their signed statements, in ledger order."""
    by_digest = {sealed.digest: sealed for sealed in statements}
    facts: list[ReviewFact] = [*record.approvals, *record.rejections]
    facts.sort(key=lambda fact: fact.index)
    return tuple(
        RecordedReview(fact=fact, sealed=by_digest.get(fact.attestation)) for fact in facts
    )


def judge_approvals(
    reviews: Sequence[RecordedReview],
    *,
    policy: StagePolicy,
    evidence: Mapping[str, AbstractSet[Digest]],
    author: str,
    now: str,
) -> ApprovalVerdict:
    """Say which reviews count for the stage of `policy`.

    Args:
        reviews: of one checkpoint, in ledger order; those of other stages are passed over.
        policy: of the stage, as it is now.
        evidence: for each kind of evidence the digests of which an approval must name one.
        author: who asked for the run: a pseudonym, `person:<pseudonym>` or `service:<key id>`.
        now: RFC 3339 time of the judgement.
    """
    tally = _Tally()
    heard: set[Digest] = set()
    for review in reviews:
        if review.fact.stage != policy.stage:
            continue
        if review.fact.attestation in heard:
            tally.refuse(review, ["the same signed statement was recorded before"])
            continue
        heard.add(review.fact.attestation)
        person, said, faults = _read(review)
        if person is None:
            tally.refuse(review, faults)
        elif not review.approves:
            # Stands whatever else is wrong with it: a missing statement must not lift a rejection.
            tally.reject(person, review, "" if said is None else said.comment)
        elif said is None:
            tally.refuse(review, faults)
        else:
            faults = _faults(review, said, policy=policy, evidence=evidence, now=now)
            if person == person_of(author):
                faults.append(f"{person} is the author of the run")
            tally.approve(person, review, faults)
    return tally.verdict()


class _Tally:
    """The state while reviews are heard in ledger order; a person's later word replaces earlier."""

    def __init__(self) -> None:
        self.counted: dict[str, RecordedReview] = {}
        self.rejections: dict[str, tuple[RecordedReview, str]] = {}
        self.refused: list[RefusedReview] = []

    def refuse(self, review: RecordedReview, reasons: Sequence[str]) -> None:
        fact = review.fact
        self.refused.append(
            RefusedReview(
                index=fact.index,
                actor=fact.actor,
                approves=review.approves,
                attestation=fact.attestation,
                reasons=tuple(reasons),
            )
        )

    def reject(self, person: str, review: RecordedReview, comment: str) -> None:
        if earlier := self.counted.pop(person, None):
            self.refuse(earlier, ["the same person rejected later"])
        if again := self.rejections.pop(person, None):
            self.refuse(again[0], ["the same person rejected again later"])
        self.rejections[person] = (review, comment)

    def approve(self, person: str, review: RecordedReview, faults: Sequence[str]) -> None:
        if lifted := self.rejections.pop(person, None):
            self.refuse(lifted[0], ["taken back: the same person approved later"])
        if faults:
            self.refuse(review, faults)
            return
        if earlier := self.counted.pop(person, None):
            self.refuse(earlier, ["the same person approved again later, and counts once"])
        self.counted[person] = review

    def verdict(self) -> ApprovalVerdict:
        return ApprovalVerdict(
            counted=tuple(
                CountedApproval(
                    person=person,
                    attestation=review.fact.attestation,
                    expires=str(review.fact.expires),
                )
                for person, review in self.counted.items()
            ),
            refused=tuple(self.refused),
            rejections=tuple(
                StandingRejection(
                    person=person, attestation=review.fact.attestation, comment=comment
                )
                for person, (review, comment) in self.rejections.items()
            ),
        )


def _read(review: RecordedReview) -> tuple[str | None, Review | None, list[str]]:
    """Return who speaks, what they signed, and what is wrong with it.

    The person is None where nobody who may review speaks; the review is None where nothing the
    person signed can be relied on.
    """
    fact, sealed = review.fact, review.sealed
    person = person_of(fact.actor)
    if person is None:
        return None, None, [f"{fact.actor} is a service: services attest, they never review"]
    if sealed is None:
        return person, None, ["its signed statement is missing, or signed by no known key"]
    if sealed.holder.role is not Role.PERSON:
        fault = f"it is signed by {sealed.holder.actor}: services attest, they never review"
        return (person if not review.approves else None), None, [fault]
    if sealed.holder.name != person:
        fault = f"the ledger names {person}, the signature is that of {sealed.holder.name}"
        return person, None, [fault]
    try:
        said = Review.from_statement(sealed.statement)
    except FormatError as error:
        return person, None, [str(error)]
    mismatches = [
        f"the ledger says {name} {recorded}, the signed statement says {signed}"
        for name, recorded, signed in (
            ("checkpoint", fact.checkpoint_id, said.checkpoint_id),
            ("stage", fact.stage, said.stage),
            ("approval", review.approves, said.approves),
            ("expiry", fact.expires, said.expires),
        )
        if recorded != signed
    ]
    return person, (None if mismatches else said), mismatches


def _faults(
    review: RecordedReview,
    said: Review,
    *,
    policy: StagePolicy,
    evidence: Mapping[str, AbstractSet[Digest]],
    now: str,
) -> list[str]:
    """Return why an approval does not count, whoever gave it."""
    faults = []
    if said.policy != policy.digest:
        faults.append(
            f"it was given under policy {said.policy.short}, the policy now is "
            f"{policy.digest.short}"
        )
    faults += [
        f"it does not name the {kind} that is relied on now"
        for kind, digests in evidence.items()
        if not digests & set(said.evidence)
    ]
    expires = instant(said.expires or now)
    if expires <= instant(now):
        faults.append(f"it expired at {said.expires}")
    longest = instant(review.fact.time) + timedelta(days=policy.max_approval_days)
    if expires > longest:
        faults.append(
            f"it runs until {said.expires}, longer than the {policy.max_approval_days} days the "
            "policy allows"
        )
    return faults
