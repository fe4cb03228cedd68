"""`strongroom evaluate`: score a checkpoint on held-out rows, beside its base model."""

from __future__ import annotations

from strongroom.cli.arguments import CheckpointArgument
from strongroom.cli.output import Reply
from strongroom.cli.progress import activity
from strongroom.cli.settings import Settings
from strongroom.errors import PolicyError


def evaluate(settings: Settings, *, checkpoint: CheckpointArgument) -> Reply:
    """Score a checkpoint on held-out rows, beside its base model.

    Ends with 40 if it does not pass the evaluation rules of its run.
    """
    from strongroom.cli.views.evaluation import evaluation_blocks, evaluation_document
    from strongroom.custody.evaluate import evaluate_checkpoint
    from strongroom.custody.resolve import resolve_name

    custody = settings.custody()
    name = resolve_name(custody, checkpoint)
    with activity(f"evaluating {name.short}"):
        evaluation = evaluate_checkpoint(custody, name)
    failed = [reason for reason in evaluation.verdict.reasons if reason.startswith("failed")]
    return Reply(
        document=evaluation_document(evaluation, name),
        blocks=evaluation_blocks(evaluation, name),
        failure=None
        if evaluation.verdict.passed
        else PolicyError(f"evaluation of {name.short}", failed),
    )
