"""What a promotion, an approval or a rejection did, and what the stage still lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strongroom.canonical import JsonObject
from strongroom.cli.blocks import Block, Line
from strongroom.cli.views.phrases import to_second
from strongroom.names import CheckpointName

if TYPE_CHECKING:
    from strongroom.custody.promote import Promotion
    from strongroom.governance.promotion import Decision
    from strongroom.governance.review import Review


def promotion_document(promotion: Promotion, name: CheckpointName) -> JsonObject:
    """Return the move as JSON."""
    return {
        "checkpoint": str(name),
        "checkpoint_id": promotion.checkpoint_id,
        "stage": promotion.stage,
        "policy": promotion.policy,
        "replaces": promotion.replaces,
        "moved": promotion.moved,
    }


def promotion_blocks(promotion: Promotion, name: CheckpointName) -> tuple[Block, ...]:
    """Say what the stage points to now."""
    if not promotion.moved:
        return (Line.of(f"@{promotion.stage} is {name.short} already; nothing was changed."),)
    before = (
        "it pointed to nothing before"
        if promotion.replaces is None
        else f"before it was {promotion.replaces.short}"
    )
    return (Line.of(f"@{promotion.stage} is now {name.short}; {before}.", "good"),)


def review_document(
    review: Review, name: CheckpointName, decision: Decision, *, person: str
) -> JsonObject:
    """Return the review as JSON, with what the stage's policy says after it."""
    return {
        "checkpoint": str(name),
        "checkpoint_id": review.checkpoint_id,
        "stage": review.stage,
        "person": person,
        "approves": review.approves,
        "policy": review.policy,
        "evidence": list(review.evidence),
        "expires": review.expires,
        "comment": review.comment,
        "allowed": decision.allowed,
        "reasons": list(decision.reasons),
    }


def review_blocks(
    review: Review, name: CheckpointName, decision: Decision, *, person: str
) -> tuple[Block, ...]:
    """Say what was recorded, and what is missing or possible next."""
    verb = "approves" if review.approves else "rejects"
    until = "" if review.expires is None else f", until {to_second(review.expires)}"
    said = Line.of(f"Recorded: {person} {verb} {name.short} for {review.stage}{until}.", "good")
    if decision.allowed:
        return (
            said,
            Line.of(f"Next: strongroom promote {name.short} --stage {review.stage}"),
        )
    return (
        said,
        Line.of(f"Before it can be promoted to {review.stage}:"),
        *(Line.of(f"  - {reason}") for reason in decision.reasons),
    )
