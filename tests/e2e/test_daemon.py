"""With the daemon running: checkpoints are governed while their training goes on.

Trainings go one at a time; one that is terminated commits a last checkpoint and leaves no process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from assets.partitions import RUNS
from resources.store import StoreResource
from strongroom.checkpoint.catalogue import checkpoint_names
from strongroom.custody.context import Custody
from strongroom.names import RunKey
from tests.support.dagster_server import (
    DagsterServer,
    dagster_server,
    training_processes,
    wait_for,
)
from tests.support.tiny_recipe import make_tiny_recipe

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

FOR_EVER = 10_000_000
GOVERNED_S = 420
STOPPED_S = 240
STATUS = dg.DagsterRunStatus


@dataclass(frozen=True)
class World:
    """A Dagster deployment with its store."""

    server: DagsterServer
    instance: dg.DagsterInstance
    custody: Custody
    folder: Path

    def launch(self, run: str, recipe: Path) -> str:
        self.instance.add_dynamic_partitions(str(RUNS.name), [run])
        config: dict[str, Any] = {"resources": {"recipe": {"config": {"config_path": str(recipe)}}}}
        return self.server.launch("finetune", partition=run, config=config)

    def status(self, run_id: str) -> dg.DagsterRunStatus:
        run = self.instance.get_run_by_id(run_id)
        assert run is not None
        return run.status

    def governed(self, asset: str, run: str) -> set[str]:
        keys = self.instance.get_materialized_partitions(dg.AssetKey(asset))
        return {key for key in keys if key.startswith(f"{run}@")}

    def wait(self, is_so: Any, timeout_s: float) -> None:  # noqa: ANN401 -- a condition
        wait_for(is_so, timeout_s, self.server.log)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    environment = {
        "DAGSTER_HOME": str(tmp_path / "home"),
        "STRONGROOM_STORE": str(tmp_path / "store"),
        "STRONGROOM_KEYS": str(tmp_path / "keys"),
        "STRONGROOM_CACHE": str(tmp_path / "cache"),
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    custody = StoreResource().custody(create=True)
    with (
        dagster_server(environment, tmp_path / "dagster.log") as server,
        dg.DagsterInstance.get() as instance,
    ):
        yield World(server=server, instance=instance, custody=custody, folder=tmp_path)


def test_governed_while_training_one_at_a_time_and_stopped_in_good_order(world: World) -> None:
    long = make_tiny_recipe(world.folder / "long", steps=FOR_EVER, every_steps=FOR_EVER)
    long.write_text(
        long.read_text().replace("save: {", "save: {every_minutes: 0.5, asynchronous: true, ")
    )
    short = make_tiny_recipe(world.folder / "short", steps=2, every_steps=2)

    first = world.launch("first", long)
    world.wait(lambda: world.status(first) is STATUS.STARTED, GOVERNED_S)
    second = world.launch("second", short)

    # A checkpoint is verified, evaluated and promoted while the training goes on.
    world.wait(lambda: bool(world.governed("verified_checkpoint", "first")), GOVERNED_S)
    assert world.status(first) is STATUS.STARTED
    assert training_processes(world.folder)
    world.wait(lambda: bool(world.governed("promoted_checkpoint", "first")), GOVERNED_S)
    assert world.status(first) is STATUS.STARTED

    # The second training waits for the pool.
    assert world.status(second) is STATUS.QUEUED

    before = checkpoint_names(world.custody.storage, RunKey("first"))
    world.server.terminate(first)
    world.wait(lambda: world.status(first) is STATUS.CANCELED, STOPPED_S)
    after = checkpoint_names(world.custody.storage, RunKey("first"))

    # It committed a last checkpoint, Dagster heard of it, and nothing of it runs any more.
    last = after[-1]
    assert len(after) > len(before)
    assert last.step > before[-1].step
    assert f"first@{last.step.number}" in world.governed("checkpoint", "first")
    assert not [line for line in training_processes(world.folder) if "--run-key first" in line]

    # What was verified was verified once.
    verified = world.instance.fetch_materializations(dg.AssetKey("verified_checkpoint"), limit=100)
    keys = [record.partition_key for record in verified.records]
    assert len(keys) == len(set(keys))

    # Now the second one goes, to its end.
    world.wait(lambda: world.status(second) is STATUS.SUCCESS, GOVERNED_S)
    assert world.governed("checkpoint", "second") == {"second@2"}
