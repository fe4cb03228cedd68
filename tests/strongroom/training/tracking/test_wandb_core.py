"""What becomes of wandb-core, and of its file, when something goes wrong."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import gettempdir

import pytest

from strongroom.canonical import JsonObject
from strongroom.training.tracking import wandb as tracking_wandb
from strongroom.training.tracking.base import Tracker
from tests.support.processes import start, tail
from tests.support.wandb_files import read_wandb, wandb_files
from tests.support.wandb_tracker import (
    LONG_S,
    PROGRAM,
    ROOT,
    cores,
    environment,
    failures,
    has_ended,
    open_wandb,
    step_event,
    wait_until,
)

__all__ = ["environment", "failures", "open_wandb"]


def test_wandb_core_ends_with_the_tracker(
    open_wandb: Callable[..., Tracker], failures: list[JsonObject]
) -> None:
    tracker = open_wandb()
    [core] = cores()
    tracker.close()
    assert has_ended(core)
    assert cores() == []
    assert "WANDB_SERVICE" not in os.environ
    assert failures == []


def test_wandb_core_ends_with_a_training_that_is_killed(tmp_path: Path) -> None:
    program = PROGRAM.replace("failures = []", "tracking_wandb.FLUSH_S = 0.05; failures = []") + (
        "for number in range(1, 51): step(number)\nsay('told')\ntime.sleep(600)\n"
    )
    log = tmp_path / "log"
    training = start([sys.executable, "-c", program, tmp_path], log=log)
    assert wait_until(lambda: bool(log.read_text())), tail(log)
    [core] = cores(training.pid)
    # What was told is written while training goes on, and outlives it.
    assert wait_until(lambda: len(written(tmp_path)) == 50)
    training.kill()
    training.wait()
    assert wait_until(lambda: has_ended(core))
    assert [row["step"] for row in written(tmp_path)] == list(range(1, 51))


def written(folder: Path) -> list[dict[str, object]]:
    """Return the rows that are in the file by now."""
    return [row for file in wandb_files(folder) for row in read_wandb(file).history]


def test_a_wandb_core_of_somebody_else_is_not_used(
    open_wandb: Callable[..., Tracker], monkeypatch: pytest.MonkeyPatch, failures: list[JsonObject]
) -> None:
    monkeypatch.setenv("WANDB_SERVICE", "3-1-unix-/nowhere/socket")
    tracker = open_wandb()
    assert len(cores()) == 1
    tracker.close()
    assert failures == []


def test_a_wandb_core_that_dies_ends_the_tracker_and_not_the_training(
    open_wandb: Callable[..., Tracker], failures: list[JsonObject]
) -> None:
    tracker = open_wandb()
    tracker.tell(step_event(1))
    [core] = cores()
    os.kill(core, signal.SIGKILL)
    assert wait_until(lambda: has_ended(core))
    for left in Path(gettempdir()).glob(f"wandb-{os.getpid()}-{core}-*"):
        shutil.rmtree(left)  # of its socket; one that is not killed takes it away itself
    for step in range(2, 200):
        tracker.tell(step_event(step))
    tracker.close()
    assert [(event["kind"], event["tracker"]) for event in failures] == [
        ("tracker.failed", "wandb")
    ]


def test_a_wandb_core_that_hangs_holds_no_step_up_and_the_end_not_for_long(tmp_path: Path) -> None:
    program = PROGRAM.replace(
        "failures = []", "failures = []\nfollowing.Follower.__init__.__kwdefaults__['close_s'] = 1"
    ) + (
        "from tests.strongroom.training.tracking.test_wandb import cores\n"
        "[core] = cores(os.getpid())\n"
        "os.kill(core, signal.SIGSTOP)\n"
        "begun = time.monotonic()\n"
        "for number in range(9000): step(number)\n"
        "told = time.monotonic()\n"
        "tracker.close()\n"
        "say(core, told - begun, time.monotonic() - told, failures[0]['kind'],"
        " failures[0]['message'])\n"
        "os._exit(0)\n"  # as a training ends
    )
    # Not into a pipe: wandb-core has it, too, and so it does not end with the training.
    log = tmp_path / "log"
    training = start([sys.executable, "-c", program, tmp_path], log=log, cwd=ROOT)
    assert training.wait(LONG_S) == 0, tail(log)
    core, tell_s, close_s, kind, message = json.loads(log.read_text().splitlines()[-1])
    os.kill(core, signal.SIGCONT)
    assert wait_until(lambda: has_ended(core))
    assert tell_s < 5.0
    assert close_s < 10.0
    assert (kind, message) == ("tracker.failed", "it did not end within 1 s")


def test_a_full_disk_is_noticed_though_wandb_core_says_nothing(tmp_path: Path) -> None:
    # The limit of a file's size is as good as a full disk.
    program = (
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))\n"
        + PROGRAM
        + "for number in range(1000): step(number)\n"
        "tracker.close()\n"
        "say([event['error'] for event in failures])\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert json.loads(ran.stdout) == [["OSError"]]
    [file] = wandb_files(tmp_path)
    assert len(read_wandb(file).history) < 1000


def test_a_disk_that_becomes_full_at_the_end_is_noticed(tmp_path: Path) -> None:
    program = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from strongroom.training.tracking.wandb import _FileWatch\n"
        "file = Path(sys.argv[1])\n"
        "with _FileWatch(file).ending(): file.write_text('all of it')\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, resource.RLIM_INFINITY))\n"
        "try:\n"
        "    with _FileWatch(file).ending(): file.write_text('all of it, and some more')\n"
        "except OSError as error: print(error.strerror)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "run.wandb")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == "File too large"
    assert [file.name for file in tmp_path.iterdir()] == ["run.wandb"]


def test_a_file_that_does_not_grow_is_noticed_while_training_goes_on(
    open_wandb: Callable[..., Tracker],
    tmp_path: Path,
    failures: list[JsonObject],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tracker = open_wandb()
    tracker.tell(step_event(1))
    [file] = wandb_files(tmp_path)
    assert file.exists()
    monkeypatch.setattr(tracking_wandb, "WRITTEN_S", 0.0)
    monkeypatch.setattr(tracking_wandb._FileWatch, "_size_now", lambda _: 7)
    for step in range(2, 5):
        tracker.tell(step_event(step))
    assert wait_until(lambda: bool(failures))
    tracker.close()
    assert failures[0]["error"] == "OSError"
    assert f"{file}: expected more than" in failures[0]["message"]


def test_what_is_not_written_yet_is_given_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr("strongroom.training.tracking.wandb.time.monotonic", lambda: now_s)
    file = tmp_path / "run.wandb"
    watch = tracking_wandb._FileWatch(file)
    now_s = 1000.0
    watch.check()  # nothing is expected
    watch.expect()
    now_s = 1000.0 + tracking_wandb.WRITTEN_S
    watch.expect()  # of the first alone it is late
    watch.check()
    file.write_bytes(b"x")
    now_s += 1.0
    watch.check()
    now_s += 1000.0
    watch.check()  # nothing is expected
    watch.expect()
    now_s += tracking_wandb.WRITTEN_S + 1.0
    with pytest.raises(OSError, match="expected more than 1 bytes, got 1"):
        watch.check()
