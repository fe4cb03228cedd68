"""Fine-tune: from rows to committed checkpoints, every night or when somebody asks."""

import dagster as dg

from assets.partitions import RUNS

MAX_RETRIES = 2
"""A run that died of the world's fault goes on from its newest checkpoint that verifies."""

finetune = dg.define_asset_job(
    "finetune",
    selection=dg.AssetSelection.assets(
        "base_model", "curated_dataset", "adapted_tokenizer", "finetune_run"
    ),
    tags={"dagster/max_retries": str(MAX_RETRIES)},
    description="Prepare the inputs of one run and train it, or go on with it.",
)


@dg.schedule(
    job=finetune,
    cron_schedule="0 2 * * *",
    execution_timezone="UTC",
    description="One run for each date. The recipe is the resource's; its key holds the date.",
)
def nightly(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
    """Ask for the run of the tick's date; a tick that is repeated asks for the same one."""
    key = nightly_key(context)
    context.instance.add_dynamic_partitions(str(RUNS.name), [key])
    return dg.RunRequest(run_key=key, partition_key=key)


def nightly_key(context: dg.ScheduleEvaluationContext) -> str:
    """Return the run key of a tick, e.g. `nightly-2026-01-31`."""
    return f"nightly-{context.scheduled_execution_time:%Y-%m-%d}"
