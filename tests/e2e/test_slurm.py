"""A run on a real Slurm, launched by Dagster: watched, cancelled, gone on with, none the worse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import dagster as dg
import pytest

from assets.partitions import RUNS
from assets.registration import CHECKPOINT
from assets.training import finetune_run
from resources.launcher import Events
from resources.recipe import Recipe
from resources.slurm import SlurmLauncher
from resources.store import StoreResource
from strongroom.canonical import JsonObject
from strongroom.checkpoint.catalogue import checkpoint_names, read_checkpoint
from strongroom.checkpoint.reading.reader import CheckpointReader
from strongroom.checkpoint.reading.state import state_digest
from strongroom.checkpoint.run_record import RunRecord
from strongroom.custody.context import Custody
from strongroom.custody.inputs import prepare
from strongroom.errors import PreemptedError
from strongroom.names import RunKey, StateDigest
from strongroom.training.config import load_config
from strongroom.training.launching.slurm_settings import SlurmSettings
from strongroom.training.launching.spec import Launch, LaunchSettings
from strongroom.training.launching.torchrun import launch
from tests.support.dagster_world import NO_CAPTURE, QUIET
from tests.support.slurm import SlurmCluster, cluster, slurm, slurm_of_session
from tests.support.tiny_recipe import make_tiny_recipe
from tests.support.trained_store import open_custody

__all__ = ["cluster", "slurm", "slurm_of_session"]

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.timeout(900)]

RUN, EXPECTED = RunKey("cancelled"), RunKey("never-stopped")
STEPS = 150
EVERY = 10


@dataclass
class Watched:
    """A launcher of which a test sees the events, each after Dagster has dealt with it."""

    launcher: SlurmLauncher
    seen: Callable[[JsonObject], None]
    ranks_are_here: ClassVar[bool] = False
    heard: list[JsonObject] = field(default_factory=list)

    def stream(
        self,
        context: dg.AssetExecutionContext,
        custody: Custody,
        record: RunRecord,
        settings: LaunchSettings,
    ) -> Events:
        for event in self.launcher.stream(context, custody, record, settings):
            yield event
            self.heard.append(event)
            self.seen(event)

    def of_kind(self, kind: str) -> list[JsonObject]:
        return [event for event in self.heard if event["kind"] == kind]


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral(settings=NO_CAPTURE) as opened:
        yield opened


def known_steps(instance: dg.DagsterInstance) -> set[int]:
    """Return the steps of the checkpoints that Dagster has heard of."""
    records = instance.fetch_materializations(CHECKPOINT, limit=1000).records
    return {int(str(record.partition_key).rpartition("@")[2]) for record in records}


def last_state(custody: Custody, run: RunKey) -> tuple[int, StateDigest]:
    committed = read_checkpoint(custody.storage, checkpoint_names(custody.storage, run)[-1])
    digest = state_digest(CheckpointReader(custody.storage, committed))
    return committed.name.step.number, digest


def test_cancelled_and_gone_on_with_equals_never_stopped(
    tmp_path: Path,
    instance: dg.DagsterInstance,
    slurm: SlurmCluster,
    cluster: SlurmSettings,
) -> None:
    recipe = make_tiny_recipe(tmp_path, steps=STEPS, every_steps=EVERY, world_size=2)
    custody = open_custody(tmp_path, create=True)
    for run in (EXPECTED, RUN):
        record = prepare(custody, run, load_config(recipe), base_dir=tmp_path, author="ada")
        if run == EXPECTED:
            spec = Launch.of(
                record, store_url=custody.store.url, keys=custody.keys.path, cache=custody.cache
            )
            list(launch(spec))
    instance.add_dynamic_partitions(str(RUNS.name), [str(RUN)])
    launcher = SlurmLauncher(
        shared_folder=str(cluster.shared_folder),
        tasks_per_node=cluster.tasks_per_node,
        environment=cluster.environment,
        pass_environment=list(cluster.pass_environment),
        poll_s=cluster.poll_s,
        job_poll_s=cluster.job_poll_s,
    )
    jobs: list[str] = []
    known_while_it_ran: set[int] = set()

    def cancel(event: JsonObject) -> None:
        if event["kind"] == "checkpoint.committed" and not jobs:
            known_while_it_ran.update(known_steps(instance))
            jobs.extend(slurm.jobs())
            slurm.run("scancel", *jobs)

    def materialize(watched: Watched) -> dg.ExecuteInProcessResult:
        store = StoreResource(
            store_url=custody.store.url,
            keys_folder=str(custody.keys.path),
            cache_folder=str(custody.cache),
            person="ada",
        )
        recipe_of_run = Recipe(config_path=str(recipe))
        return dg.materialize(
            [finetune_run],
            instance=instance,
            partition_key=str(RUN),
            resources={"store": store, "recipe": recipe_of_run, "launcher": watched},
            run_config=QUIET,
        )

    cancelled = Watched(launcher, cancel)
    with pytest.raises(PreemptedError, match="the same command goes on from there"):
        materialize(cancelled)

    # Dagster knew the first checkpoint while the job ran on two nodes, and knows the last one.
    assert known_while_it_ran == {EVERY}
    (started,) = cancelled.of_kind("training.started")
    assert (started["world_size"], started["resumed_from"]) == (2, None)
    (stopped,) = cancelled.of_kind("training.stopped")
    assert EVERY < stopped["step"] < STEPS
    committed = {name.step.number for name in checkpoint_names(custody.storage, RUN)}
    assert stopped["step"] in committed
    assert known_steps(instance) == committed
    said = slurm.run("scontrol", "show", "job", *jobs)
    assert "JobState=CANCELLED" in said
    assert f"ExitCode={PreemptedError.exit_code}:0" in said
    assert "NodeList=first,second" in said

    resumed = Watched(launcher, lambda _event: None)
    assert materialize(resumed).success

    (started,) = resumed.of_kind("training.started")
    assert started["resumed_from"] == f"{RUN}/attempt-0001/step-{stopped['step']:08d}"
    assert started["exact"], started["inexact"]
    steps = [event["step"] for event in resumed.of_kind("training.step")]
    assert steps == list(range(stopped["step"] + 1, STEPS + 1))
    assert last_state(custody, RUN) == last_state(custody, EXPECTED)
    assert STEPS in known_steps(instance)
    # Nothing is left but what is to be kept.
    assert slurm.jobs() == []
    assert list(custody.storage.walk("launches")) == []
    assert len(list(cluster.shared_folder.glob("*/*/log.txt"))) == 2
