"""What is told to W&B, where it is kept, and how it is configured."""

from __future__ import annotations

import getpass
import math
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from strongroom.canonical import JsonObject
from strongroom.errors import ConfigError
from strongroom.training.tracking import wandb as tracking_wandb
from strongroom.training.tracking.base import Tracked, Tracker
from strongroom.training.tracking.config import WandbConfig
from strongroom.training.tracking.wandb import mode_of
from tests.support.processes import free_port
from tests.support.wandb_files import read_wandb, wandb_files
from tests.support.wandb_server import wandb_server
from tests.support.wandb_tracker import (
    KEY,
    PROGRAM,
    RUN,
    SETTINGS,
    cores,
    environment,
    failures,
    only_run,
    open_wandb,
    rows,
    step_event,
)

__all__ = ["environment", "failures", "open_wandb"]


def test_what_is_told_offline_is_in_the_file_to_be_synchronised(
    open_wandb: Callable[..., Tracker], tmp_path: Path, failures: list[JsonObject]
) -> None:
    tracker = open_wandb()
    tracker.tell({"kind": "training.started", "run": RUN, "attempt": 1})
    tracker.tell(step_event(1, mfu=None, tokens_per_s=1000.0))
    tracker.tell(step_event(2, mfu=0.5, tokens_per_s=2000.0))
    tracker.tell({"kind": "step.passed_over", "step": 3, "reason": "loss is nan"})
    tracker.tell({"kind": "training.finished", "step": 3})
    tracker.close()
    run = only_run(tmp_path)
    assert (run.run_id, run.project, run.group) == (RUN, "tests", "nightly")
    assert {name: run.config[name] for name in SETTINGS} == SETTINGS
    assert rows(run) == [
        {"step": 0, "events/training.started": f"run: {RUN}, attempt: 1"},
        {"step": 1, "train/loss": 9.0, "speed/tokens_per_s": 1000.0},
        {"step": 2, "train/loss": 8.0, "speed/tokens_per_s": 2000.0, "speed/mfu": 0.5},
        {"step": 3, "events/step.passed_over": "step: 3, reason: loss is nan"},
        {"step": 3, "events/training.finished": "step: 3"},
    ]
    assert run.step_metrics == {"*": "step"}
    assert run.exit_code == 0
    assert failures == []


@pytest.mark.parametrize("loss", [math.nan, "nan", "inf", "-inf"])
def test_what_is_not_finite_is_kept_as_such(
    open_wandb: Callable[..., Tracker], tmp_path: Path, failures: list[JsonObject], loss: object
) -> None:
    tracker = open_wandb()
    tracker.tell(step_event(1, grad_norm=1.0) | {"loss": loss})
    tracker.close()
    [row] = rows(only_run(tmp_path))
    kept = row["train/loss"]
    assert isinstance(kept, float | str)
    assert str(float(kept)) == str(loss)
    assert row["grad_norm" if "grad_norm" in row else "train/grad_norm"] == 1.0
    assert failures == []


def test_attempts_are_one_run_there_and_keep_their_number(
    open_wandb: Callable[..., Tracker], tmp_path: Path
) -> None:
    first = open_wandb(attempt=1)
    first.tell(step_event(1))
    first.tell({"kind": "training.stopped", "step": 1})
    first.close()
    second = open_wandb(attempt=2, step=1)
    second.tell({"kind": "training.started", "attempt": 2})
    second.tell(step_event(2))
    second.close()
    runs = [read_wandb(file) for file in wandb_files(tmp_path)]
    assert [run.run_id for run in runs] == [RUN, RUN]
    numbers = [[(row["step"], row["attempt"]) for row in run.history] for run in runs]
    assert sorted(numbers) == [[(1, 1), (1, 1)], [(1, 2), (2, 2)]]


def test_what_was_told_offline_can_be_synchronised_later(
    open_wandb: Callable[..., Tracker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for attempt, step in ((1, 0), (2, 2)):
        tracker = open_wandb(attempt=attempt, step=step)
        tracker.tell(step_event(step + 1))
        tracker.close()
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    with wandb_server() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        folders = [str(file.parent) for file in wandb_files(tmp_path)]
        command = [sys.executable, "-m", "wandb", "sync", *folders]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    # In the order of the attempts, the second as what goes on with the first.
    assert [(row["attempt"], row["step"]) for row in server.history] == [(1, 1), (2, 3)]
    assert server.asked.count("RunResumeStatus") == 2
    assert {upsert["name"] for upsert in server.upserts} == {RUN}


@pytest.mark.parametrize(
    ("last", "exit_code", "is_preempting"),
    [("training.finished", 0, False), ("training.stopped", 75, True), (None, 60, False)],
)
def test_the_run_ends_there_as_it_ends_here(
    open_wandb: Callable[..., Tracker],
    tmp_path: Path,
    last: str | None,
    exit_code: int,
    *,
    is_preempting: bool,
) -> None:
    tracker = open_wandb()
    if last is not None:
        tracker.tell({"kind": last, "step": 1})
    tracker.close()
    run = only_run(tmp_path)
    assert (run.exit_code, run.is_preempting) == (exit_code, is_preempting)


def test_nothing_of_the_key_or_the_machine_is_written(
    open_wandb: Callable[..., Tracker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    tracker = open_wandb()
    print("a word to the console")  # noqa: T201 -- what must not be captured
    tracker.tell(step_event(1))
    tracker.close()
    files = [file for file in (tmp_path / "wandb").rglob("*") if file.is_file()]
    assert all(KEY not in file.read_text(errors="replace") for file in files)
    [data] = [file.read_bytes() for file in files if file.suffix == ".wandb"]
    private = (
        b"a word to the console",
        socket.gethostname().encode() + b"\x00",
        f"{getpass.getuser()}@".encode(),
        sys.argv[0].encode(),
        os.getcwd().encode(),  # noqa: PTH109 -- as it is
        b"torch==",
    )
    assert [word for word in private if word in data] == []
    assert not list((tmp_path / "wandb").rglob("wandb-metadata.json"))
    assert not list((tmp_path / "wandb").rglob("requirements.txt"))


def test_nothing_of_the_machine_is_asked_for_and_what_is_told_is_written_soon(
    tmp_path: Path,
) -> None:
    # Some of it would come only after a while, as the use of the processor does.
    tracked = Tracked(folder=tmp_path, run=RUN, attempt=1, step=0, settings={})
    tracker = tracking_wandb.Wandb(WandbConfig(project="tests"), tracked, mode="offline")
    settings = tracker._run.settings
    tracker.close()
    assert settings.x_disable_stats
    assert settings.x_disable_meta
    assert settings.x_disable_machine_info
    assert settings.disable_git
    assert settings.disable_code
    assert not settings.save_code
    assert settings.x_transaction_log_flush_interval == tracking_wandb.FLUSH_S <= 5.0
    assert os.environ["WANDB_ERROR_REPORTING"] == "false"


def test_offline_no_connection_is_opened(tmp_path: Path) -> None:
    program = PROGRAM + (
        "say('open')\n"
        "for number in range(100): step(number); time.sleep(0.01)\n"
        "tracker.close()\n"
        "say(failures)\n"
    )
    seen: set[str] = set()
    core_was_there = False
    with socket.create_server(("127.0.0.1", 0)) as proxy:  # who connects stays connected
        url = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        environment = {
            name: value for name, value in os.environ.items() if name.lower() != "no_proxy"
        }
        environment |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "https_proxy"), url)
        training = subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            env={**environment, "WANDB_API_KEY": KEY},
        )
        while training.poll() is None:
            for pid in [training.pid, *cores(training.pid)]:
                core_was_there |= pid != training.pid
                seen |= internet_sockets(pid)
        output, _ = training.communicate()
        proxy.settimeout(0.0)
        with pytest.raises(BlockingIOError):
            proxy.accept()
    assert output.splitlines() == ['["open"]', "[[]]"]
    assert core_was_there
    assert seen == set()


def internet_sockets(pid: int) -> set[str]:
    """Return the sockets that a process has open, but for those of its own machine's files."""
    process = Path(f"/proc/{pid}")
    found = set()
    try:
        inodes = {
            name[len("socket:[") : -1]
            for name in (str(file.readlink()) for file in (process / "fd").iterdir())
            if name.startswith("socket:[")
        }
        for protocol in ("tcp", "tcp6", "udp", "udp6"):
            for line in (process / "net" / protocol).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[9] in inodes:
                    found.add(f"{protocol} {fields[1]} {fields[2]}")
    except OSError:  # it has ended
        return set()
    return found


@pytest.mark.parametrize(
    ("configured", "environment", "mode"),
    [
        ("offline", {}, "offline"),
        ("online", {"WANDB_API_KEY": KEY}, "online"),
        ("online", {"WANDB_MODE": "offline"}, "offline"),
        ("online", {"WANDB_MODE": "disabled"}, "disabled"),
        ("offline", {"WANDB_MODE": "online", "WANDB_API_KEY": KEY}, "online"),
    ],
)
def test_the_environment_has_the_last_word(
    configured: str, environment: dict[str, str], mode: str
) -> None:
    config = WandbConfig(project="tests", mode=configured)  # type: ignore[arg-type]
    assert mode_of(config, environment) == mode


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, "WANDB_API_KEY"),
        ({"WANDB_API_KEY": ""}, "WANDB_API_KEY"),
        ({"WANDB_MODE": "shared", "WANDB_API_KEY": KEY}, "got 'shared'"),
    ],
)
def test_a_mode_that_cannot_work_is_refused(environment: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        mode_of(WandbConfig(project="tests", mode="online"), environment)


def test_a_project_that_wandb_refuses_is_a_fault_of_the_configuration(
    open_wandb: Callable[..., Tracker],
) -> None:
    with pytest.raises(ConfigError, match=r"tracking\.wandb.*\n.*a/b"):
        open_wandb(WandbConfig(project="a/b"))
    assert cores() == []


def test_a_key_that_cannot_be_one_is_a_fault_of_the_configuration(
    open_wandb: Callable[..., Tracker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "too-short")
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(ConfigError, match="WANDB_API_KEY") as raised:
        open_wandb(WandbConfig(project="tests", mode="online"))
    assert "too-short" not in str(raised.value)
    assert cores() == []
