"""Evaluation: the held-out loss of a verified checkpoint beside its base model's."""

import dagster as dg

from assets.metadata import lines, numbers, texts
from assets.partitions import CHECKPOINTS, checkpoint_check, checkpoint_of
from resources.store import StoreResource
from strongroom.custody.evaluate import evaluate_checkpoint
from strongroom.evaluation.report import EvaluationReport


@dg.asset(
    group_name="strongroom",
    kinds={"strongroom"},
    partitions_def=CHECKPOINTS,
    deps=["verified_checkpoint"],
    check_specs=[
        checkpoint_check(
            "evaluated_checkpoint", "verdict", "The run's evaluation rules, held-out loss first."
        )
    ],
    automation_condition=dg.AutomationCondition.eager()
    & dg.AutomationCondition.all_deps_blocking_checks_passed(),
    description="Held-out loss and bits per byte of a checkpoint, and the verdict on them.",
)
def evaluated_checkpoint(
    context: dg.AssetExecutionContext, store: StoreResource
) -> dg.MaterializeResult:
    custody = store.custody()
    name = checkpoint_of(custody.storage, context.partition_key)
    evaluation = evaluate_checkpoint(custody, name)
    report, verdict = evaluation.report, evaluation.verdict
    told = {"reasons": lines(verdict.reasons), **texts(checkpoint=name), **_measured(report)}
    check = dg.AssetCheckResult(check_name="verdict", passed=verdict.passed, metadata=told)
    version = dg.DataVersion(str(report.checkpoint_id))
    return dg.MaterializeResult(data_version=version, metadata=told, check_results=[check])


def _measured(report: EvaluationReport) -> dict[str, dg.MetadataValue]:
    return numbers(
        {
            "held_out_loss": report.loss,
            "bits_per_byte": report.bits_per_byte,
            "base_loss": report.base_loss,
            "base_bits_per_byte": report.base_bits_per_byte,
            "num_rows": report.num_rows,
            "num_tokens": report.num_tokens,
        }
    )
