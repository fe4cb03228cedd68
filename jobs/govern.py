"""Govern: verify, evaluate and promote each checkpoint, as soon as it is committed."""

import dagster as dg

GOVERNED = dg.AssetSelection.assets(
    "verified_checkpoint", "evaluated_checkpoint", "promoted_checkpoint"
)

govern = dg.define_asset_job(
    "govern",
    selection=GOVERNED,
    description="Verify one checkpoint, evaluate it, and promote it to staging if it is better.",
)

production = dg.define_asset_job(
    "production",
    selection=dg.AssetSelection.assets("production_model"),
    description="Move production to a checkpoint that enough people approved, if there is one.",
)

govern_automation = dg.AutomationConditionSensorDefinition(
    "govern_automation",
    target=GOVERNED,
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=5,
    description="Looks at every new checkpoint while its training goes on.",
)
