"""The main path, killed and interrupted while it trains: nothing is lost, nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from pipelines.finetune import INTERRUPTED
from resources.store import ROOT
from strongroom.checkpoint.catalogue import checkpoint_names
from strongroom.names import Attempt, CheckpointName, RunKey
from strongroom.storage.store import open_store
from tests.support.dagster_server import training_processes, wait_for
from tests.support.tiny_recipe import make_tiny_recipe

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

FOR_EVER = 10_000_000
RUN = RunKey("long")
WAIT_S = 300


class Training:
    """The main path in a process of its own, and what it said so far."""

    def __init__(self, folder: Path, recipe: Path, out: Path) -> None:
        self.folder, self.out = folder, out
        with out.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pipelines.finetune", str(recipe), "--run", str(RUN)],
                cwd=ROOT,
                env={
                    **os.environ,
                    "DAGSTER_HOME": str(folder / "home"),
                    "STRONGROOM_STORE": str(folder / "store"),
                    "STRONGROOM_KEYS": str(folder / "keys"),
                    "STRONGROOM_CACHE": str(folder / "cache"),
                },
                stdout=output,
                stderr=subprocess.STDOUT,
                # A test run started in the background would have its children ignore Ctrl-C.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 -- takes no lock
            )

    @property
    def told(self) -> str:
        return self.out.read_text()

    def wait_for_a_checkpoint(self) -> None:
        wait_for(lambda: "checkpoint registered" in self.told, WAIT_S, self.out)

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(WAIT_S)

    def checkpoints(self) -> list[CheckpointName]:
        return checkpoint_names(open_store(str(self.folder / "store")).storage, RUN)


def test_killed_then_gone_on_then_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = make_tiny_recipe(tmp_path, steps=FOR_EVER, every_steps=FOR_EVER)
    recipe.write_text(recipe.read_text().replace("save: {", "save: {every_minutes: 0.1, "))

    killed = Training(tmp_path, recipe, tmp_path / "killed.log")
    killed.wait_for_a_checkpoint()
    assert killed.end(signal.SIGKILL) == -signal.SIGKILL
    wait_for(lambda: not training_processes(tmp_path), WAIT_S, killed.out)
    before = killed.checkpoints()

    again = Training(tmp_path, recipe, tmp_path / "again.log")
    again.wait_for_a_checkpoint()
    code = again.end(signal.SIGINT)

    assert code == INTERRUPTED
    assert "had died; it is marked as failed" in again.told
    assert f"training starts again from {before[-1]}, attempt 2" in again.told
    assert "the same command goes on" in again.told
    assert training_processes(tmp_path) == {}

    # The stop itself committed a checkpoint, and Dagster has heard of every one.
    after = again.checkpoints()
    assert after[-1].attempt == Attempt(2)
    assert f"did, at step {after[-1].step.number}" in again.told
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    with dg.DagsterInstance.get() as instance:
        known = instance.get_materialized_partitions(dg.AssetKey("checkpoint"))
    assert known == {f"{RUN}@{name.step.number}" for name in after}
