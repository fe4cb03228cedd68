"""The main job, run as `make finetune` runs it, but on a tiny model and rows made here."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.tiny_recipe import EVERY_STEPS, STEPS, make_tiny_recipe

ROOT = Path(__file__).resolve().parent.parent.parent
__all__ = ["EVERY_STEPS", "RUN", "STEPS", "MainPathRun", "environment_in", "run_main_path"]

RUN = "tiny-chat"


@dataclass(frozen=True, kw_only=True)
class MainPathRun:
    """A finished main job: its environment, what it printed, and where things are."""

    environment: dict[str, str]
    config: Path
    reports: Path
    output: str
    exit_code: int

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the `strongroom` command on the job's store."""
        return subprocess.run(
            [sys.executable, "-m", "strongroom.cli.main", *arguments],
            env=os.environ | self.environment,
            capture_output=True,
            text=True,
            check=False,
        )


def environment_in(folder: Path, store: str | None = None) -> dict[str, str]:
    """Return the variables that keep everything a job makes inside `folder`, or its store."""
    return {
        "DAGSTER_HOME": str(folder / "dagster"),
        "STRONGROOM_STORE": store or str(folder / "store"),
        "STRONGROOM_KEYS": str(folder / "keys"),
        "STRONGROOM_CACHE": str(folder / "cache"),
        "STRONGROOM_PERSON": "tester",
        "HF_HUB_OFFLINE": "1",
        "DAGSTER_DISABLE_TELEMETRY": "1",
    }


def run_main_path(folder: Path, store: str | None = None, **extra: str) -> MainPathRun:
    """Run the main job to its end in `folder`."""
    config = make_tiny_recipe(folder, world_size=2)
    environment = environment_in(folder, store) | extra
    reports = folder / "reports"
    command = [sys.executable, "-m", "pipelines.finetune", str(config), "--run", RUN]
    done = subprocess.run(
        [*command, "--reports", str(reports)],
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return MainPathRun(
        environment=environment,
        config=config,
        reports=reports,
        output=done.stdout,
        exit_code=done.returncode,
    )
