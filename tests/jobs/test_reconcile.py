"""What the store holds and Dagster never heard of is registered; nothing else is touched."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from assets.partitions import CHECKPOINTS
from assets.registration import CHECKPOINT, register
from jobs.reconcile import reconcile, reconcile_sensor
from resources.store import StoreResource
from strongroom.storage.base import Storage
from strongroom.storage.store import open_or_create_store
from tests.support.checkpoints import save_checkpoint
from tests.support.dagster_world import QUIET, instance

__all__ = ["instance"]


@pytest.fixture
def store(tmp_path: Path) -> StoreResource:
    return StoreResource(
        store_url=str(tmp_path / "store"),
        keys_folder=str(tmp_path / "keys"),
        cache_folder=str(tmp_path / "cache"),
    )


@pytest.fixture
def storage(store: StoreResource) -> Storage:
    return open_or_create_store(store.location).storage


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every checkpoint be as old as it must be to be overlooked."""
    monkeypatch.setattr("jobs.reconcile.GRACE", timedelta(0))


def run_reconcile(instance: dg.DagsterInstance, store: StoreResource) -> None:
    result = reconcile.execute_in_process(
        instance=instance, resources={"store": store}, run_config=QUIET
    )
    assert result.success


def ask(instance: dg.DagsterInstance, store: StoreResource) -> list[str | None]:
    context = dg.build_sensor_context(instance=instance, resources={"store": store})
    data = reconcile_sensor.evaluate_tick(context)
    return [request.job_name for request in data.run_requests or []]


def told_partitions(instance: dg.DagsterInstance) -> list[str | None]:
    found = instance.fetch_materializations(CHECKPOINT, limit=100)
    return [record.partition_key for record in reversed(found.records)]


@pytest.mark.usefixtures("old")
def test_a_missed_checkpoint_is_registered_once(
    instance: dg.DagsterInstance, store: StoreResource, storage: Storage
) -> None:
    heard = save_checkpoint(storage, 10).name
    instance.report_runless_asset_event(register(instance, storage, heard))
    save_checkpoint(storage, 20)

    asked = ask(instance, store)
    run_reconcile(instance, store)
    run_reconcile(instance, store)

    assert asked == ["reconcile"]
    assert told_partitions(instance) == ["nightly-7@10", "nightly-7@20"]
    assert "nightly-7@20" in instance.get_dynamic_partitions(str(CHECKPOINTS.name))
    assert ask(instance, store) == []


def test_a_young_checkpoint_is_left_to_the_training_that_made_it(
    instance: dg.DagsterInstance, store: StoreResource, storage: Storage
) -> None:
    committed = save_checkpoint(storage, 10)
    assert datetime.now(UTC) - datetime.fromisoformat(committed.manifest.created) < timedelta(
        seconds=30
    )

    assert ask(instance, store) == []


@pytest.mark.usefixtures("old")
def test_one_reconciliation_at_a_time(
    instance: dg.DagsterInstance, store: StoreResource, storage: Storage
) -> None:
    save_checkpoint(storage, 10)
    instance.create_run_for_job(reconcile, status=dg.DagsterRunStatus.STARTED)

    assert ask(instance, store) == []


def test_where_there_is_no_store_there_is_nothing_to_do(
    instance: dg.DagsterInstance, store: StoreResource
) -> None:
    context = dg.build_sensor_context(instance=instance, resources={"store": store})
    data = reconcile_sensor.evaluate_tick(context)

    assert data.run_requests == []
    assert data.skip_message == f"there is no store yet at {store.location}"
