"""A review: what a person signs to approve or reject a checkpoint for a stage.

It binds a checkpoint id, a stage, the digest of the stage's policy and the digests of the evidence
the person looked at. Law: `Review.from_statement(r.to_statement(name)) == r`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from strongroom.canonical import JsonObject
from strongroom.errors import FormatError, InputError
from strongroom.ledger.facts import PRODUCTION, STAGING
from strongroom.names import CheckpointId, CheckpointName, Digest
from strongroom.signing.statement import APPROVAL, REJECTION, Statement

MAX_COMMENT_CHARACTERS = 2000
PROMOTED_STAGES = (STAGING, PRODUCTION)


@dataclass(frozen=True, kw_only=True, slots=True)
class Review:
    """What a person says about one checkpoint and one stage.

    Attributes:
        approves: True for an approval, False for a rejection.
        policy: digest of the stage's policy the person had before them.
        evidence: digests of the attestations the person looked at.
        expires: RFC 3339 time from which an approval no longer counts; None for a rejection.
        comment: the person's own words; '' for none.
    """

    approves: bool
    checkpoint_id: CheckpointId
    stage: str
    policy: Digest
    evidence: tuple[Digest, ...]
    expires: str | None
    comment: str = ""

    def __post_init__(self) -> None:
        if self.stage not in PROMOTED_STAGES:
            raise InputError(
                f"review: expected a stage of {', '.join(PROMOTED_STAGES)}, got {self.stage!r}"
            )
        if self.approves != (self.expires is not None):
            raise InputError(
                "review: an approval must have an expiry and a rejection must have none, got "
                f"approves={self.approves} with expires={self.expires!r}"
            )
        if len(self.comment) > MAX_COMMENT_CHARACTERS:
            raise InputError(
                f"review: a comment has at most {MAX_COMMENT_CHARACTERS} characters, "
                f"got {len(self.comment)}"
            )

    def to_statement(self, name: CheckpointName) -> Statement:
        """Return the statement to be signed; `name` is what people call the checkpoint."""
        predicate: JsonObject = {
            "checkpoint_id": str(self.checkpoint_id),
            "stage": self.stage,
            "policy": str(self.policy),
            "evidence": [str(digest) for digest in self.evidence],
            "expires": self.expires,
        }
        if self.comment:
            predicate["comment"] = self.comment
        return Statement(
            subject_name=str(name),
            subject=self.checkpoint_id,
            predicate_type=APPROVAL if self.approves else REJECTION,
            predicate=predicate,
        )

    @classmethod
    def from_statement(cls, statement: Statement) -> Review:
        """Read a statement of type approval or rejection.

        Raises:
            FormatError: another type, a field is missing or malformed, or subject and predicate
                name different checkpoints.
        """
        if statement.predicate_type not in {APPROVAL, REJECTION}:
            raise FormatError(
                f"review: expected a statement of type {APPROVAL} or {REJECTION}, "
                f"got {statement.predicate_type}"
            )
        said = statement.predicate
        try:
            review = cls(
                approves=statement.predicate_type == APPROVAL,
                checkpoint_id=CheckpointId(Digest.parse(said["checkpoint_id"])),
                stage=said["stage"],
                policy=Digest.parse(said["policy"]),
                evidence=tuple(Digest.parse(text) for text in said["evidence"]),
                expires=said["expires"],
                comment=said.get("comment", ""),
            )
            if review.expires is not None:
                instant(review.expires)
        except (AttributeError, KeyError, TypeError, InputError) as error:
            raise FormatError(f"review: a field is missing or malformed: {error!r}") from error
        if review.checkpoint_id != statement.subject:
            raise FormatError(
                f"review: its subject is {statement.subject}, what it says is about "
                f"{review.checkpoint_id}"
            )
        return review


def person_of(actor: str) -> str | None:
    """Return the pseudonym of an actor or author, None for a service."""
    if actor.startswith("service:"):
        return None
    return actor.removeprefix("person:")


def expiry(now: str, days: float) -> str:
    """Return the time `days` days after `now`, both RFC 3339 in UTC."""
    later = instant(now) + timedelta(days=days)
    return later.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def instant(text: str) -> datetime:
    """Read an RFC 3339 time.

    Raises:
        InputError: not a time, or one without an offset from UTC.
    """
    try:
        read = datetime.fromisoformat(text)
    except (TypeError, ValueError) as error:
        raise InputError(f"time: expected RFC 3339 in UTC, got {text!r}") from error
    if read.tzinfo is None:
        raise InputError(f"time: expected an offset from UTC ('Z'), got {text!r}")
    return read.astimezone(UTC)
