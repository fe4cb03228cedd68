"""A tracker of W&B under test: opened, told, and its wandb-core watched."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from strongroom.canonical import JsonObject
from strongroom.training.tracking.base import Tracker
from strongroom.training.tracking.config import TrackingConfig, WandbConfig
from strongroom.training.tracking.opening import open_trackers
from tests.support.wandb_files import WandbRun, read_wandb, wandb_files

KEY = "0123456789abcdef0123456789abcdef01234567"
RUN = "nightly-7"
LONG_S = 60.0
ROOT = Path(__file__).parents[2]
SETTINGS = {"train": {"steps": 3}, "adapter": {"method": "lora"}}

PROGRAM = f"""
import json, os, signal, sys, time
from pathlib import Path
from strongroom.training.tracking.config import TrackingConfig, WandbConfig
from strongroom.training.tracking.opening import open_trackers
from strongroom.training.tracking import following, wandb as tracking_wandb

failures = []
tracker = open_trackers(TrackingConfig(wandb=WandbConfig(project="tests")),
    folder=Path(sys.argv[1]), run="{RUN}", attempt=1, step=0, settings={{}},
    on_failure=failures.append)

def step(number):
    tracker.tell({{"kind": "training.step", "step": number, "loss": 1.0}})

def say(*words):
    print(json.dumps(words), flush=True)
"""
"""The beginning of a training of its own process, which tells steps to W&B, offline."""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    # What the tracker sets itself is taken back after the test, too.
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "true")
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))


@pytest.fixture
def failures() -> list[JsonObject]:
    return []


@pytest.fixture
def open_wandb(tmp_path: Path, failures: list[JsonObject]) -> Iterator[Callable[..., Tracker]]:
    """Open a tracker, and end it with the test in any case."""
    import wandb

    def opened(config: WandbConfig | None = None, *, attempt: int = 1, step: int = 0) -> Tracker:
        config = WandbConfig(project="tests", group="nightly") if config is None else config
        return open_trackers(
            TrackingConfig(wandb=config),
            folder=tmp_path,
            run=RUN,
            attempt=attempt,
            step=step,
            settings=SETTINGS,
            on_failure=failures.append,
        )

    yield opened
    wandb.teardown()
    assert cores() == []


def step_event(step: int, **fields: object) -> JsonObject:
    return {"kind": "training.step", "step": step, "loss": 10.0 - step, **fields}


def cores(parent: int | None = None) -> list[int]:
    """Return the pids of wandb-core processes that a process has started."""
    parent = os.getpid() if parent is None else parent
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = file.read_text().partition("(")[2].rpartition(")")
        except OSError:  # it has ended
            continue
        state, its_parent = rest.split()[:2]
        if name == "wandb-core" and int(its_parent) == parent and state != "Z":
            found.append(int(file.parent.name))
    return found


def has_ended(pid: int) -> bool:
    """Return whether a process is gone, or is dead and only waits to be noticed."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def wait_until(holds: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + LONG_S
    while not holds():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    return True


def only_run(folder: Path) -> WandbRun:
    [file] = wandb_files(folder)
    return read_wandb(file)


def rows(run: WandbRun) -> list[dict[str, object]]:
    return [{k: v for k, v in row.items() if k != "attempt"} for row in run.history]
