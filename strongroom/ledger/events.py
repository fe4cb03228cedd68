"""The events a ledger holds: digests and pseudonymous actors only, no personal data, no weights.

An actor is `service:<key id>` or `person:<pseudonym>`. Law: `Event.from_json(e.to_json()) == e`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from strongroom.canonical import JsonObject
from strongroom.errors import FormatError, InputError
from strongroom.names import CheckpointId, CheckpointName, Digest


class EventKind(StrEnum):
    """What happened; a past participle of the thing it happened to."""

    STORE_CREATED = "store.created"
    RUN_CREATED = "run.created"
    ATTEMPT_STARTED = "attempt.started"
    CHECKPOINT_COMMITTED = "checkpoint.committed"
    CHECKPOINT_VERIFIED = "checkpoint.verified"
    CHECKPOINT_QUARANTINED = "checkpoint.quarantined"
    CHECKPOINT_EVALUATED = "checkpoint.evaluated"
    CHECKPOINT_APPROVED = "checkpoint.approved"
    CHECKPOINT_REJECTED = "checkpoint.rejected"
    CHECKPOINT_PROMOTED = "checkpoint.promoted"
    CHECKPOINT_EXPORTED = "checkpoint.exported"
    PROMOTION_REFUSED = "promotion.refused"


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One thing that happened.

    Attributes:
        checkpoint_id, checkpoint: set together, where the event is about a checkpoint.
        facts: what else there is to say, by kind:
            run.created: run, config, base_model, dataset, tokenizer (digests), author
            attempt.started: run, attempt, resumed_from (checkpoint id or null)
            checkpoint.committed: num_bytes
            checkpoint.verified: passed, rung, attestation, state_digest (null where unread)
            checkpoint.quarantined: reason
            checkpoint.evaluated: passed, attestation
            checkpoint.approved / rejected: stage, policy, attestation, expires
            checkpoint.promoted: stage, policy, attestation, replaces (checkpoint id or null)
            checkpoint.exported: format, exported (id of the copy), num_bytes
            promotion.refused: stage, policy, reasons
    """

    kind: EventKind
    time: str
    actor: str
    checkpoint_id: CheckpointId | None = None
    checkpoint: CheckpointName | None = None
    facts: JsonObject = field(default_factory=dict)

    def to_json(self) -> JsonObject:
        """Return the JSON object whose canonical form is the ledger entry."""
        document: JsonObject = {
            "format": "strongroom.event/1",
            "kind": str(self.kind),
            "time": self.time,
            "actor": self.actor,
            "facts": self.facts,
        }
        if self.checkpoint_id is not None and self.checkpoint is not None:
            document["checkpoint_id"] = str(self.checkpoint_id)
            document["checkpoint"] = str(self.checkpoint)
        return document

    @classmethod
    def from_json(cls, document: JsonObject) -> Event:
        """Read an entry.

        Raises:
            FormatError: of an unknown format version, or a field is missing, malformed or unknown.
        """
        if document.get("format") != "strongroom.event/1":
            raise FormatError(
                "ledger entry: expected format 'strongroom.event/1', "
                f"got {document.get('format')!r}"
            )
        try:
            named = "checkpoint_id" in document
            event = cls(
                kind=EventKind(document["kind"]),
                time=document["time"],
                actor=document["actor"],
                checkpoint_id=CheckpointId(Digest.parse(document["checkpoint_id"]))
                if named
                else None,
                checkpoint=CheckpointName.parse(document["checkpoint"]) if named else None,
                facts=document["facts"],
            )
        except (KeyError, TypeError, ValueError, AttributeError, InputError) as error:
            raise FormatError(f"ledger entry: a field is missing or unknown: {error!r}") from error
        texts = (event.time, event.actor)
        if not all(isinstance(text, str) for text in texts) or not isinstance(event.facts, dict):
            raise FormatError("ledger entry: expected time and actor as text, facts as an object")
        if event.to_json() != document:
            raise FormatError(
                "ledger entry: expected kind, time, actor, facts and perhaps checkpoint_id with "
                f"checkpoint, got {sorted(document)}"
            )
        return event
