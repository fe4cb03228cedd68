"""Promotion: staging by policy, production when enough people who did not make the run approve.

The checks before are triggers; the promotion itself reads ledger, manifest and evidence again.
A refusal is a verdict and no failure: the run succeeds, the check says why, and the asset is not
materialised.
"""

from collections.abc import Iterator, Sequence

import dagster as dg

from assets.metadata import lines, numbers, texts
from assets.partitions import CHECKPOINTS, checkpoint_check, checkpoint_of
from assets.registration import DATA_VERSION_TAG
from resources.store import StoreResource
from strongroom.checkpoint.catalogue import Committed, read_checkpoint
from strongroom.custody.context import Custody
from strongroom.custody.promote import judge_promotion, promote_checkpoint
from strongroom.custody.resolve import by_id
from strongroom.errors import PolicyError
from strongroom.ledger.history import PRODUCTION, STAGING

CHECK = "policy"
PASSED_ON_RECORD = dg.AutomationCondition.all_deps_match(
    dg.AutomationCondition.all_checks_match(
        dg.AutomationCondition.check_passed(), blocking_only=True
    )
)
"""Only a verdict that stands: not one that the same request is yet to bring about."""


@dg.asset(
    group_name="strongroom",
    kinds={"strongroom"},
    partitions_def=CHECKPOINTS,
    deps=["evaluated_checkpoint"],
    check_specs=[
        checkpoint_check(
            "promoted_checkpoint", CHECK, "What staging asks of a checkpoint.", blocking=False
        )
    ],
    output_required=False,
    automation_condition=dg.AutomationCondition.eager() & PASSED_ON_RECORD,
    description="A checkpoint that was moved to staging, where the newest of its run stays.",
)
def promoted_checkpoint(
    context: dg.AssetExecutionContext, store: StoreResource
) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult]:
    custody = store.custody()
    name = checkpoint_of(custody.storage, context.partition_key)
    committed = read_checkpoint(custody.storage, name)
    reasons = _promote_to_staging(custody, committed)
    check = dg.AssetCheckResult(
        check_name=CHECK,
        passed=not reasons,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={"reasons": lines(reasons)},
    )
    yield check if reasons else _in_stage(committed, STAGING, check)


@dg.asset(
    group_name="strongroom",
    kinds={"strongroom"},
    deps=[dg.AssetDep("promoted_checkpoint", partition_mapping=dg.AllPartitionMapping())],
    output_required=False,
    description="What production points to; moved when enough people approved what is in staging.",
)
def production_model(
    context: dg.AssetExecutionContext, store: StoreResource
) -> Iterator[dg.MaterializeResult]:
    custody = store.custody()
    staged = _awaiting_production(custody)
    if staged is not None:
        decision = judge_promotion(custody, staged, PRODUCTION)
        if decision.allowed:
            promote_checkpoint(custody, staged, PRODUCTION)
        for reason in decision.reasons:
            context.log.info("%s waits for production: %s", staged.name.short, reason)
    held = _holder(custody, PRODUCTION)
    if held is not None:
        yield _in_stage(held, PRODUCTION)


def production_is_due(instance: dg.DagsterInstance, custody: Custody) -> bool:
    """Return whether production may move, or has moved without Dagster's knowledge."""
    held = custody.history().in_stage(PRODUCTION)
    event = instance.get_latest_materialization_event(dg.AssetKey("production_model"))
    seen = event.asset_materialization if event is not None else None
    if held is not None and (seen is None or (seen.tags or {}).get(DATA_VERSION_TAG) != str(held)):
        return True
    staged = _awaiting_production(custody)
    return staged is not None and judge_promotion(custody, staged, PRODUCTION).allowed


def _promote_to_staging(custody: Custody, committed: Committed) -> Sequence[str]:
    """Move staging there; return why it did not move, nothing if it did.

    Checkpoints may be evaluated in any order; staging does not go back within a run by itself.
    """
    held = _holder(custody, STAGING)
    if held is not None and held.name.run == committed.name.run and held.name > committed.name:
        return [f"staging holds {held.name.short}, a later checkpoint of the same run"]
    try:
        promote_checkpoint(custody, committed, STAGING)
    except PolicyError as refusal:
        return refusal.reasons
    return []


def _awaiting_production(custody: Custody) -> Committed | None:
    """Return what is in staging, unless it is in production already."""
    history = custody.history()
    staged = history.in_stage(STAGING)
    return None if staged in {None, history.in_stage(PRODUCTION)} else _holder(custody, STAGING)


def _holder(custody: Custody, stage: str) -> Committed | None:
    held = custody.history().in_stage(stage)
    return None if held is None else by_id(custody, held)


def _in_stage(
    committed: Committed, stage: str, *checks: dg.AssetCheckResult
) -> dg.MaterializeResult:
    return dg.MaterializeResult(
        check_results=checks,
        data_version=dg.DataVersion(str(committed.checkpoint_id)),
        metadata={
            **texts(checkpoint=committed.name, checkpoint_id=committed.checkpoint_id, stage=stage),
            **numbers({"step": committed.name.step.number}),
        },
    )
