"""One event, read into a typed fact: what each kind of event must say.

Invariant: `fact_of` accepts exactly what the ledger may hold. The ledger asks it before it
appends, so nothing that was appended can make a history unreadable later. Facts an event says
beyond those of its kind are allowed and ignored here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from strongroom.canonical import JsonObject
from strongroom.errors import FormatError, InputError
from strongroom.ledger.events import Event, EventKind
from strongroom.names import CheckpointId, CheckpointName, Digest, RunKey, StateDigest

CANDIDATE: Final = "candidate"
STAGING: Final = "staging"
PRODUCTION: Final = "production"
STAGES: Final = (CANDIDATE, STAGING, PRODUCTION)
"""Promotion stages in rising order; every committed checkpoint is a candidate."""

_ACTOR = re.compile(r"service:ed25519-[0-9a-f]{16}|person:[a-z0-9][a-z0-9._-]{0,62}")
_AUTHOR = re.compile(r"[a-z0-9][a-z0-9._:-]{0,79}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """What every fact has: its place in the ledger, when (RFC 3339, UTC) and by whom."""

    index: int
    time: str
    actor: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreFact(Fact):
    """The store came to be."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptFact(Fact):
    """A process was launched for a run."""

    run: RunKey
    number: int
    resumed_from: CheckpointId | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFact(Fact):
    """A run came to be; `facts` holds all that its event said.

    Attributes:
        author: the pseudonym of who asked for the run; may not approve its checkpoints.
    """

    key: RunKey
    author: str
    config: Digest
    base_model: Digest
    dataset: Digest
    tokenizer: Digest
    facts: JsonObject
    attempts: tuple[AttemptFact, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointFact(Fact):
    """A fact about one checkpoint."""

    checkpoint_id: CheckpointId
    name: CheckpointName


@dataclass(frozen=True, kw_only=True, slots=True)
class CommittedFact(CheckpointFact):
    """The manifest stands."""

    num_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifiedFact(CheckpointFact):
    """The verification ladder was climbed up to `rung` (1 bytes, 2 structure, 3 load, ...)."""

    passed: bool
    rung: int
    attestation: Digest
    state_digest: StateDigest | None


@dataclass(frozen=True, kw_only=True, slots=True)
class QuarantinedFact(CheckpointFact):
    """The checkpoint may not be loaded any more."""

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluatedFact(CheckpointFact):
    """The checkpoint was judged by an evaluation policy."""

    passed: bool
    attestation: Digest


@dataclass(frozen=True, kw_only=True, slots=True)
class ReviewFact(CheckpointFact):
    """A person's word on a promotion, given under one policy.

    Attributes:
        actor: the person, `person:<pseudonym>`.
        expires: RFC 3339 time from which the word no longer counts, None for never.
    """

    stage: str
    policy: Digest
    attestation: Digest
    expires: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ApprovedFact(ReviewFact):
    """A person approved."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RejectedFact(ReviewFact):
    """A person rejected."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PromotedFact(CheckpointFact):
    """A stage moved to this checkpoint; `replaces` held it before."""

    stage: str
    policy: Digest
    attestation: Digest
    replaces: CheckpointId | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportedFact(CheckpointFact):
    """A copy left the store; `exported` is the copy's own checkpoint id."""

    format: str
    exported: CheckpointId
    num_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RefusedFact(CheckpointFact):
    """A promotion was asked for and refused by policy."""

    stage: str
    policy: Digest
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Said:
    """What one event says, read field by field; each reader refuses what is not of its type."""

    index: int
    event: Event

    def basis(self) -> dict[str, Any]:
        """Return what every fact has."""
        return {"index": self.index, "time": self.event.time, "actor": self._actor()}

    def about(self) -> dict[str, Any]:
        """Return what every fact about a checkpoint has."""
        if self.event.checkpoint_id is None or self.event.checkpoint is None:
            self._refuse("checkpoint_id, checkpoint", "both to be set", None)
        return {
            **self.basis(),
            "checkpoint_id": self.event.checkpoint_id,
            "name": self.event.checkpoint,
        }

    def review(self) -> dict[str, Any]:
        """Return what approvals and rejections have."""
        return {
            "stage": self.stage(),
            "policy": self.digest("policy"),
            "attestation": self.digest("attestation"),
            "expires": self.text_or_none("expires"),
        }

    def _actor(self) -> str:
        if not _ACTOR.fullmatch(self.event.actor):
            self._refuse("actor", "service:<key id> or person:<pseudonym>", self.event.actor)
        return self.event.actor

    def author(self) -> str:
        author = self.text("author")
        if not _AUTHOR.fullmatch(author):
            self._refuse("facts.author", "a pseudonym, or an actor", author)
        return author

    def run(self) -> RunKey:
        text = self.text("run")
        try:
            return RunKey.parse(text)
        except InputError:
            self._refuse("facts.run", "a run key", text)

    def stage(self) -> str:
        stage = self.text("stage")
        if stage not in {STAGING, PRODUCTION}:
            self._refuse("facts.stage", f"{STAGING!r} or {PRODUCTION!r}", stage)
        return stage

    def text(self, name: str) -> str:
        value = self.event.facts.get(name)
        if not isinstance(value, str):
            self._refuse(f"facts.{name}", "a string", value)
        return value

    def text_or_none(self, name: str) -> str | None:
        return None if self.event.facts.get(name) is None else self.text(name)

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.event.facts.get(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self._refuse(f"facts.{name}", "a list of strings", value)
        return tuple(value)

    def flag(self, name: str) -> bool:
        value = self.event.facts.get(name)
        if not isinstance(value, bool):
            self._refuse(f"facts.{name}", "true or false", value)
        return value

    def number(self, name: str) -> int:
        value = self.event.facts.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            self._refuse(f"facts.{name}", "an integer, not negative", value)
        return value

    def digest(self, name: str) -> Digest:
        text = self.text(name)
        try:
            return Digest.parse(text)
        except InputError:
            self._refuse(f"facts.{name}", "'sha256:<64 hex>'", text)

    def digest_or_none(self, name: str) -> Digest | None:
        return None if self.event.facts.get(name) is None else self.digest(name)

    def checkpoint_or_none(self, name: str) -> CheckpointId | None:
        digest = self.digest_or_none(name)
        return None if digest is None else CheckpointId(digest)

    def _refuse(self, field: str, expected: str, got: object) -> NoReturn:
        raise FormatError(
            f"ledger event {self.index} ({self.event.kind}): {field}: "
            f"expected {expected}, got {got!r}"
        )


def fact_of(index: int, event: Event) -> Fact:
    """Read the event at ledger `index` into its fact.

    Raises:
        FormatError: a fact its kind must have is missing or malformed; or an actor or author is
            not a pseudonym, or names neither a key nor a person.
    """
    return _READERS[event.kind](_Said(index, event))


def _store(said: _Said) -> Fact:
    return StoreFact(**said.basis())


def _run(said: _Said) -> Fact:
    return RunFact(
        **said.basis(),
        key=said.run(),
        author=said.author(),
        config=said.digest("config"),
        base_model=said.digest("base_model"),
        dataset=said.digest("dataset"),
        tokenizer=said.digest("tokenizer"),
        facts=said.event.facts,
    )


def _attempt(said: _Said) -> Fact:
    return AttemptFact(
        **said.basis(),
        run=said.run(),
        number=said.number("attempt"),
        resumed_from=said.checkpoint_or_none("resumed_from"),
    )


def _committed(said: _Said) -> Fact:
    return CommittedFact(**said.about(), num_bytes=said.number("num_bytes"))


def _verified(said: _Said) -> Fact:
    state_digest = said.digest_or_none("state_digest")
    return VerifiedFact(
        **said.about(),
        passed=said.flag("passed"),
        rung=said.number("rung"),
        attestation=said.digest("attestation"),
        state_digest=None if state_digest is None else StateDigest(state_digest),
    )


def _quarantined(said: _Said) -> Fact:
    return QuarantinedFact(**said.about(), reason=said.text("reason"))


def _evaluated(said: _Said) -> Fact:
    return EvaluatedFact(
        **said.about(), passed=said.flag("passed"), attestation=said.digest("attestation")
    )


def _approved(said: _Said) -> Fact:
    return ApprovedFact(**said.about(), **said.review())


def _rejected(said: _Said) -> Fact:
    return RejectedFact(**said.about(), **said.review())


def _promoted(said: _Said) -> Fact:
    return PromotedFact(
        **said.about(),
        stage=said.stage(),
        policy=said.digest("policy"),
        attestation=said.digest("attestation"),
        replaces=said.checkpoint_or_none("replaces"),
    )


def _exported(said: _Said) -> Fact:
    return ExportedFact(
        **said.about(),
        format=said.text("format"),
        exported=CheckpointId(said.digest("exported")),
        num_bytes=said.number("num_bytes"),
    )


def _refused(said: _Said) -> Fact:
    return RefusedFact(
        **said.about(),
        stage=said.stage(),
        policy=said.digest("policy"),
        reasons=said.texts("reasons"),
    )


_READERS: Final[dict[EventKind, Callable[[_Said], Fact]]] = {
    EventKind.STORE_CREATED: _store,
    EventKind.RUN_CREATED: _run,
    EventKind.ATTEMPT_STARTED: _attempt,
    EventKind.CHECKPOINT_COMMITTED: _committed,
    EventKind.CHECKPOINT_VERIFIED: _verified,
    EventKind.CHECKPOINT_QUARANTINED: _quarantined,
    EventKind.CHECKPOINT_EVALUATED: _evaluated,
    EventKind.CHECKPOINT_APPROVED: _approved,
    EventKind.CHECKPOINT_REJECTED: _rejected,
    EventKind.CHECKPOINT_PROMOTED: _promoted,
    EventKind.CHECKPOINT_EXPORTED: _exported,
    EventKind.PROMOTION_REFUSED: _refused,
}
