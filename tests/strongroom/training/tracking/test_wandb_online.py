"""W&B with a server: one that answers, one that does not, and one that goes away."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from strongroom.canonical import JsonObject
from strongroom.training.tracking import following
from strongroom.training.tracking import wandb as tracking_wandb
from strongroom.training.tracking.base import Tracker
from strongroom.training.tracking.config import WandbConfig
from tests.support.processes import free_port
from tests.support.wandb_server import wandb_server
from tests.support.wandb_tracker import (
    KEY,
    LONG_S,
    RUN,
    cores,
    environment,
    failures,
    only_run,
    open_wandb,
    step_event,
)

__all__ = ["environment", "failures", "open_wandb"]


def test_a_server_that_does_not_answer_ends_the_tracker_and_not_the_training(
    open_wandb: Callable[..., Tracker],
    monkeypatch: pytest.MonkeyPatch,
    failures: list[JsonObject],
) -> None:
    assert tracking_wandb.INIT_S <= 30.0
    monkeypatch.setattr(tracking_wandb, "INIT_S", 1.0)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{free_port()}")
    begun_s = time.monotonic()
    tracker = open_wandb(WandbConfig(project="tests", mode="online"))
    assert time.monotonic() - begun_s < LONG_S / 2
    assert cores() == []
    tracker.tell(step_event(1))
    tracker.close()
    assert [(event["tracker"], event["error"]) for event in failures] == [("wandb", "CommError")]
    assert KEY not in json.dumps(failures)


def test_online_what_is_told_arrives_and_the_key_stays_in_the_header(
    open_wandb: Callable[..., Tracker],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failures: list[JsonObject],
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    with wandb_server() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        tracker = open_wandb(WandbConfig(project="tests", entity="team", mode="online"))
        tracker.tell(step_event(1))
        tracker.tell(step_event(2, mfu=0.5))
        tracker.tell({"kind": "training.finished", "step": 2})
        tracker.close()
    assert failures == []
    assert [(row["step"], row.get("train/loss")) for row in server.history] == [
        (1, 9.0),
        (2, 8.0),
        (2, None),
    ]
    assert server.exit_code == 0
    assert len(server.keys) == 1
    told = {name: value for upsert in server.upserts for name, value in upsert.items() if value}
    assert (told["name"], told["entity"], told["program"]) == (RUN, "team", "strongroom.training")
    assert not {"host", "repo", "commit"} & set(told)
    for file in (tmp_path / "wandb").rglob("*"):
        assert file.is_dir() or KEY not in file.read_text(errors="replace"), file


def test_a_server_that_goes_away_delays_the_end_for_a_while_and_nothing_is_lost(
    open_wandb: Callable[..., Tracker],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failures: list[JsonObject],
) -> None:
    assert tracking_wandb.UPLOAD_S < following.CLOSE_S
    monkeypatch.setattr(tracking_wandb, "UPLOAD_S", 1.0)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    with wandb_server() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        tracker = open_wandb(WandbConfig(project="tests", mode="online"))
    begun_s = time.monotonic()
    for step in range(1, 4):
        tracker.tell(step_event(step))
    tracker.close()
    assert time.monotonic() - begun_s < LONG_S / 2
    assert [(event["tracker"], event["error"]) for event in failures] == [("wandb", "TimeoutError")]
    assert [row["step"] for row in only_run(tmp_path).history] == [1, 2, 3]
