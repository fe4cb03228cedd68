"""`strongroom promote`, `approve` and `reject`: who may go where."""

from __future__ import annotations

from typing import Annotated

import typer

from strongroom.cli.arguments import CheckpointArgument, PersonOption, StageOption
from strongroom.cli.output import Reply
from strongroom.cli.settings import Settings

CommentOption = Annotated[
    str, typer.Option("--comment", metavar="TEXT", help="Your words; they are signed and kept.")
]


def promote(settings: Settings, *, checkpoint: CheckpointArgument, stage: StageOption) -> Reply:
    """Point a stage to a checkpoint, if its policy allows it."""
    from strongroom.cli.views.promotion import promotion_blocks, promotion_document
    from strongroom.custody.promote import promote_checkpoint
    from strongroom.custody.resolve import resolve

    custody = settings.custody()
    committed = resolve(custody, checkpoint)
    promotion = promote_checkpoint(custody, committed, stage)
    return Reply(
        document=promotion_document(promotion, committed.name),
        blocks=promotion_blocks(promotion, committed.name),
    )


def approve(
    settings: Settings,
    *,
    checkpoint: CheckpointArgument,
    stage: StageOption,
    person: PersonOption,
    comment: CommentOption = "",
) -> Reply:
    """Approve a checkpoint for a stage, in your name."""
    return _review(settings, checkpoint, stage, person=person, approves=True, comment=comment)


def reject(
    settings: Settings,
    *,
    checkpoint: CheckpointArgument,
    stage: StageOption,
    person: PersonOption,
    comment: CommentOption = "",
) -> Reply:
    """Reject a checkpoint for a stage, in your name."""
    return _review(settings, checkpoint, stage, person=person, approves=False, comment=comment)


def _review(  # noqa: PLR0913 -- who says what of which checkpoint for which stage
    settings: Settings, checkpoint: str, stage: str, *, person: str, approves: bool, comment: str
) -> Reply:
    from strongroom.cli.views.promotion import review_blocks, review_document
    from strongroom.custody.promote import judge_promotion, review_checkpoint
    from strongroom.custody.resolve import resolve

    custody = settings.custody()
    committed = resolve(custody, checkpoint)
    review = review_checkpoint(
        custody, committed, stage, person=person, approves=approves, comment=comment
    )
    decision = judge_promotion(custody, committed, stage)
    return Reply(
        document=review_document(review, committed.name, decision, person=person),
        blocks=review_blocks(review, committed.name, decision, person=person),
    )
