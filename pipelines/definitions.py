"""Everything Dagster loads, put together: the only `Definitions` there is."""

import dagster as dg

from assets import (
    base_model,
    checkpoints,
    dataset,
    evaluation,
    promotion,
    tokenizer,
    training,
)
from jobs.finetune import finetune, nightly
from jobs.govern import govern, govern_automation, production
from jobs.reconcile import reconcile, reconcile_sensor
from resources.launcher import TorchrunLauncher
from resources.recipe import Recipe
from resources.store import StoreResource

defs = dg.Definitions(
    assets=[
        base_model.base_model,
        dataset.curated_dataset,
        tokenizer.adapted_tokenizer,
        training.finetune_run,
        checkpoints.checkpoint,
        checkpoints.verified_checkpoint,
        evaluation.evaluated_checkpoint,
        promotion.promoted_checkpoint,
        promotion.production_model,
    ],
    jobs=[finetune, govern, production, reconcile],
    schedules=[nightly],
    sensors=[govern_automation, reconcile_sensor],
    resources={
        "store": StoreResource(),
        "recipe": Recipe(),
        "launcher": TorchrunLauncher(),
    },
    # A step is one call of the engine, or waits for a training: processes of its own cost more
    # than they isolate.
    executor=dg.in_process_executor,
)
