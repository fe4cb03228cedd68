"""With the daemon running: checkpoints are governed while their training goes on.

Trainings go one at a time; one that is terminated commits a last checkpoint and leaves no process.
"""

from __future__ import annotations

import os
import re
import signal
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
from strongroom.names import Attempt, CheckpointName, RunKey
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

    def checkpoints(self, run: str) -> list[CheckpointName]:
        return checkpoint_names(self.custody.storage, RunKey(run))

    def training(self, run: str) -> list[int]:
        """Return the processes of a run's training, the one that was launched first."""
        found = training_processes(self.folder)
        return sorted(pid for pid, command in found.items() if f" {run} " in command)

    def launcher_of(self, run: str) -> int:
        """Return the process that launched a run's training."""
        launched = self.training(run)[0]
        status = Path(f"/proc/{launched}/status").read_text()
        return int(re.findall(r"^PPid:\t(\d+)$", status, re.MULTILINE)[0])

    def retries_of(self, run_id: str) -> list[str]:
        wanted = dg.RunsFilter(tags={"dagster/parent_run_id": run_id})
        return [run.run_id for run in self.instance.get_runs(wanted)]

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


def test_governed_while_training_one_at_a_time_retried_and_stopped(world: World) -> None:
    long = make_tiny_recipe(world.folder / "long", steps=FOR_EVER, every_steps=FOR_EVER)
    long.write_text(long.read_text().replace("save: {", "save: {every_minutes: 0.5, "))
    short = make_tiny_recipe(world.folder / "short", steps=2, every_steps=2)

    first = world.launch("first", long)
    world.wait(lambda: world.status(first) is STATUS.STARTED, GOVERNED_S)
    second = world.launch("second", short)

    # A checkpoint is verified, evaluated and promoted while the training goes on.
    world.wait(lambda: bool(world.governed("verified_checkpoint", "first")), GOVERNED_S)
    assert world.status(first) is STATUS.STARTED
    assert world.training("first")
    world.wait(lambda: bool(world.governed("promoted_checkpoint", "first")), GOVERNED_S)
    assert world.status(first) is STATUS.STARTED

    # The second training waits for the pool.
    assert world.status(second) is STATUS.QUEUED

    # The process that launched the training is killed: the training dies with it, Dagster sees
    # it, lets the second one go to its end, then goes on with the first as a new attempt.
    os.kill(world.launcher_of("first"), signal.SIGKILL)
    world.wait(lambda: not world.training("first"), STOPPED_S)
    world.wait(lambda: world.status(first) is STATUS.FAILURE, GOVERNED_S)
    world.wait(lambda: world.status(second) is STATUS.SUCCESS, GOVERNED_S)
    assert world.governed("checkpoint", "second") == {"second@2"}
    world.wait(lambda: bool(world.retries_of(first)), GOVERNED_S)
    (retry,) = world.retries_of(first)
    before = world.checkpoints("first")
    assert {name.attempt for name in before} == {Attempt(1)}
    world.wait(lambda: len(world.checkpoints("first")) > len(before), GOVERNED_S)
    resumed = world.checkpoints("first")[-1]
    assert resumed.attempt == Attempt(2)
    assert resumed.step > before[-1].step

    # Terminated, it commits a last checkpoint that Dagster hears of, and nothing of it is left.
    world.server.terminate(retry)
    world.wait(lambda: world.status(retry) is STATUS.CANCELED, STOPPED_S)
    last = world.checkpoints("first")[-1]
    assert last.step > resumed.step
    assert f"first@{last.step.number}" in world.governed("checkpoint", "first")
    assert not world.training("first")

    # What was verified was verified once.
    verified = world.instance.fetch_materializations(dg.AssetKey("verified_checkpoint"), limit=100)
    keys = [record.partition_key for record in verified.records]
    assert len(keys) == len(set(keys))
