"""Checkpoints: registered while training runs, then verified one by one."""

from collections.abc import Iterator

import dagster as dg

from assets.metadata import lines, numbers, texts
from assets.partitions import CHECKPOINTS, checkpoint_check, checkpoint_of
from assets.registration import CHECKPOINT
from resources.store import StoreResource
from strongroom.custody.verify import verify_checkpoint
from strongroom.verification.ladder import VerificationReport

checkpoint = dg.AssetSpec(
    CHECKPOINT,
    description="A committed checkpoint; training reports it the moment its manifest stands.",
    group_name="strongroom",
    kinds={"pytorch"},
    partitions_def=CHECKPOINTS,
    deps=[dg.AssetDep("finetune_run", partition_mapping=dg.AllPartitionMapping())],
)

# eager(), but that its first look counts: what was committed while no daemon ran is looked at too.
# A verification that failed is not repeated by itself.
NEWLY_COMMITTED = (
    (dg.AutomationCondition.newly_missing() | dg.AutomationCondition.any_deps_updated()).since(
        dg.AutomationCondition.newly_requested() | dg.AutomationCondition.newly_updated()
    )
    & ~dg.AutomationCondition.any_deps_missing()
    & ~dg.AutomationCondition.any_deps_in_progress()
    & ~dg.AutomationCondition.in_progress()
).with_label("committed and not looked at since")


@dg.asset(
    group_name="strongroom",
    kinds={"strongroom"},
    partitions_def=CHECKPOINTS,
    deps=[CHECKPOINT],
    check_specs=[
        checkpoint_check(
            "verified_checkpoint",
            "intact",
            "Every byte, the structure and a loss after loading are what was promised.",
        )
    ],
    output_required=False,
    automation_condition=NEWLY_COMMITTED,
    description="A checkpoint that climbed the verification ladder; a failed one is quarantined.",
)
def verified_checkpoint(
    context: dg.AssetExecutionContext, store: StoreResource
) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult]:
    custody = store.custody()
    name = checkpoint_of(custody.storage, context.partition_key)
    report = verify_checkpoint(custody, name)
    told = {"findings": lines(report.findings), **numbers(_measured(report))}
    check = dg.AssetCheckResult(check_name="intact", passed=report.passed, metadata=told)
    if not report.passed:
        yield check
        return
    version = dg.DataVersion(str(report.checkpoint_id))
    facts = texts(checkpoint=name, state_digest=report.state_digest) | told
    yield dg.MaterializeResult(data_version=version, metadata=facts, check_results=[check])


def _measured(report: VerificationReport) -> dict[str, float | None]:
    seconds = {f"{rung.rung.name.lower()}_s": rung.seconds for rung in report.rungs}
    return {"rung": int(report.highest), "verify_s": report.seconds, **seconds}
