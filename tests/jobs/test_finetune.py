"""The nightly schedule: one run for each date."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import dagster as dg

from assets.partitions import RUNS
from assets.training import POOL, finetune_run
from jobs.finetune import finetune, nightly
from pipelines.definitions import defs
from strongroom.names import RunKey
from tests.support.dagster_world import instance_in_files

__all__ = ["instance_in_files"]

NIGHT = datetime(2026, 1, 31, 2, 0, tzinfo=UTC)


def tick(instance: dg.DagsterInstance, at: datetime) -> dg.RunRequest:
    context = dg.build_schedule_context(
        instance=instance,
        scheduled_execution_time=at,
        repository_def=defs.get_repository_def(),
    )
    data = nightly.evaluate_tick(context)
    assert data.run_requests is not None
    assert len(data.run_requests) == 1
    return data.run_requests[0]


def test_a_tick_asks_for_the_run_of_its_date(instance_in_files: dg.DagsterInstance) -> None:
    request = tick(instance_in_files, NIGHT)

    assert request.run_key == "nightly-2026-01-31"
    assert request.partition_key == "nightly-2026-01-31"
    assert "nightly-2026-01-31" in instance_in_files.get_dynamic_partitions(str(RUNS.name))
    RunKey.parse(request.partition_key)


def test_a_tick_that_is_repeated_asks_for_the_same_run(
    instance_in_files: dg.DagsterInstance,
) -> None:
    first, second = tick(instance_in_files, NIGHT), tick(instance_in_files, NIGHT)

    # Dagster launches one run for each run key of a schedule, however often it is asked.
    assert first.run_key == second.run_key
    keys = instance_in_files.get_dynamic_partitions(str(RUNS.name))
    assert sorted(keys) == sorted(set(keys))


def test_every_date_has_a_run_of_its_own(instance_in_files: dg.DagsterInstance) -> None:
    keys = {tick(instance_in_files, NIGHT + timedelta(days=day)).run_key for day in range(3)}

    assert keys == {"nightly-2026-01-31", "nightly-2026-02-01", "nightly-2026-02-02"}


def test_the_schedule_fires_once_a_day() -> None:
    assert nightly.cron_schedule == "0 2 * * *"
    assert nightly.execution_timezone == "UTC"


def test_training_is_retried_and_waits_for_its_pool() -> None:
    assert finetune.tags == {"dagster/max_retries": "2"}
    assert finetune_run.op.pool == POOL
