"""Trainings that hang, lose ranks, are pre-empted or orphaned: what is learnt does not change.

One run on two ranks that nothing happened to; the others are the same, and something does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from strongroom.canonical import JsonObject
from strongroom.checkpoint.attempts import AttemptRecord, read_attempt
from strongroom.checkpoint.catalogue import checkpoint_names
from strongroom.errors import FencedError, HungError, PreemptedError
from strongroom.names import Attempt
from strongroom.training.config import LaunchConfig
from strongroom.training.launching.supervise import Events, supervise
from strongroom.training.launching.torchrun import environment, launch
from tests.support.faulty_rank import FAULTS_VARIABLE, Fault, faulty_command, in_environment
from tests.support.training_run import TrainingRun, make_training_run

ROOT = Path(__file__).resolve().parents[2]
STEPS = 8
HANG_TIMEOUT_S = 12.0
"""A step takes a fraction of a second; on a machine that does much else, some."""
WAIT_S = 300.0

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """A run, and all that its attempts told."""

    run: TrainingRun
    events: list[JsonObject]

    def of_kind(self, kind: str) -> list[JsonObject]:
        return [event for event in self.events if event["kind"] == kind]

    def losses(self) -> dict[int, float]:
        """Return the loss of every step, as it was told last."""
        return {event["step"]: event["loss"] for event in self.of_kind("training.step")}

    def tokens(self) -> dict[int, int]:
        return {event["step"]: event["step_tokens"] for event in self.of_kind("training.step")}

    def attempt(self, number: int) -> AttemptRecord:
        return read_attempt(self.run.storage, self.run.record.run, Attempt(number))


def make_run(folder: Path) -> TrainingRun:
    # Blocking saves: what is committed before a step goes wrong is no matter of luck.
    save = {"every_steps": 3, "asynchronous": False}
    return make_training_run(folder, steps=STEPS, method="full", save=save)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Told:
    run = make_run(tmp_path_factory.mktemp("undisturbed"))
    told = Told(run=run, events=list(launch(run.launch())))
    assert list(told.losses()) == list(range(1, STEPS + 1))
    return told


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets what goes wrong in the launches of a test."""

    def put(*wanted: Fault) -> None:
        monkeypatch.setenv(FAULTS_VARIABLE, in_environment(wanted))
        monkeypatch.setenv("PYTHONPATH", str(ROOT))

    return put


def supervised(run: TrainingRun, **launch_config: object) -> Events:
    """Start a run whose ranks go wrong, and again as its configuration allows."""
    spec = run.launch()
    config = LaunchConfig(**{"restart_delay_s": 0.1, **launch_config})  # type: ignore[arg-type]
    settings = replace(spec.settings, launch=config)
    return supervise(
        replace(spec, settings=settings),
        run.record,
        lambda attempt: launch(attempt, command=faulty_command),
    )


def test_a_rank_that_hangs_and_one_that_is_killed_change_nothing(
    tmp_path: Path,
    undisturbed: Told,
    faults: Callable[..., None],
    capfd: pytest.CaptureFixture[str],
) -> None:
    run = make_run(tmp_path)
    faults(
        Fault(what="hang", step=5, mark=str(tmp_path / "hung")),
        Fault(what="kill", step=8, mark=str(tmp_path / "killed")),
    )
    told = Told(run=run, events=[])
    since = ended_s = time.monotonic()
    for event in supervised(run, max_restarts=1, hang_timeout_s=HANG_TIMEOUT_S):
        told.events.append(event)
        if event["kind"] == "training.step" and event["step"] == 4:
            since = time.monotonic()
        if event["kind"] == "training.restarting" and event["error"] == "HungError":
            ended_s = time.monotonic() - since
    # A checkpoint came between: with one restart allowed, both were.
    first, second = told.of_kind("training.restarting")
    assert (first["error"], second["error"]) == ("HungError", "RankLostError")
    assert (first["restart"], second["restart"]) == (1, 1)
    assert (first["world_size"], second["world_size"]) == (2, 2)
    assert HANG_TIMEOUT_S / 2 < ended_s < WAIT_S  # what is told is heard a little later
    hung = [event for event in told.of_kind("training.failed") if event["error"] == "HungError"]
    assert {event["exit_code"] for event in hung} == {HungError.exit_code}
    assert any("step 5: expected it to end within" in event["message"] for event in hung)
    stacks = capfd.readouterr().err
    assert "faulty_rank.py" in stacks  # where the one that hung stood
    assert "all_reduce" in stacks  # and where the other waited for it
    resumed = [event["resumed_from"] for event in told.of_kind("training.started")]
    assert resumed == [None, "tiny/attempt-0001/step-00000003", "tiny/attempt-0002/step-00000006"]
    assert all(event["exact"] for event in told.of_kind("training.started"))
    assert told.losses() == undisturbed.losses()
    assert run.state_digests() == undisturbed.run.state_digests()


def test_ranks_that_are_lost_for_good_are_done_without_and_may_come_back(
    tmp_path: Path, undisturbed: Told, faults: Callable[..., None]
) -> None:
    run = make_run(tmp_path)
    faults(
        Fault(what="kill", step=5, mark=str(tmp_path / "killed")),
        Fault(what="kill", step=5, mark=str(tmp_path / "killed again")),
        Fault(what="stop", step=7, rank=0, mark=str(tmp_path / "pre-empted")),
    )
    told = Told(run=run, events=[])
    with pytest.raises(PreemptedError, match="step 7 is committed"):
        told.events.extend(supervised(run, max_restarts=2, min_world_size=1))
    assert [event["world_size"] for event in told.of_kind("training.restarting")] == [2, 1]
    alone = told.attempt(3)
    assert alone.placement["world_size"] == 1
    assert alone.placement["micro_batch_rows"] == 4, "it takes no more rows at a time than before"
    assert any("world_size 2 -> 1" in reason for reason in alone.inexact)
    assert told.attempt(2).inexact == ()
    # Whoever launches it the next time has two ranks again.
    back = Told(run=run, events=list(launch(run.launch())))
    (started,) = back.of_kind("training.started")
    assert started["resumed_from"] == "tiny/attempt-0003/step-00000007"
    assert not started["exact"]
    assert {*alone.inexact} < {*started["inexact"]}, "what was rounded otherwise stays so"
    assert back.attempt(4).reseeded_ranks == (1,)
    every = Told(run=run, events=[*told.events, *back.events])
    assert every.losses() == pytest.approx(undisturbed.losses(), rel=1e-6)
    assert every.tokens() == undisturbed.tokens(), "a step has the rows that it had"
    saved = [
        (n.attempt.number, n.step.number) for n in checkpoint_names(run.storage, run.record.run)
    ]
    assert saved == [(1, 3), (3, 6), (3, 7), (4, 8)]


# --- an orphan ------------------------------------------------------------------------

LAUNCHER = """
import json, subprocess, sys
subprocess.Popen(json.loads(sys.argv[1]), start_new_session=True).wait()
"""
"""A launcher without any pact: what it starts survives it, as on a cluster."""


@pytest.fixture
def orphaned(tmp_path: Path, faults: Callable[..., None]) -> Iterator[tuple[TrainingRun, Path]]:
    """A training whose launcher is killed, and that waits before its fifth step for `go`."""
    run, events, go = make_run(tmp_path), tmp_path / "events.jsonl", tmp_path / "go"
    faults(Fault(what="wait", step=5, rank=0, mark=str(tmp_path / "waits"), go=str(go)))
    spec = run.launch()
    command = [
        "torch.distributed.run" if word == "strongroom.training.launching.agent" else word
        for word in faulty_command(spec, events)
    ]
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, json.dumps(command)], env=environment(spec)
    )
    try:
        wait_until((tmp_path / "waits").exists, launcher)
        wait_until(lambda: len(checkpoint_names(run.storage, run.record.run)) == 1, launcher)
        launcher.send_signal(signal.SIGKILL)
        launcher.wait()
        yield run, events
    finally:
        launcher.kill()
        for pid in processes_with(str(events)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_an_orphan_commits_nothing_into_a_run_that_another_attempt_owns(
    tmp_path: Path, undisturbed: Told, orphaned: tuple[TrainingRun, Path]
) -> None:
    run, events = orphaned
    assert len(processes_with(str(events))) >= 3, "torchrun and two ranks outlived their launcher"
    told = Told(run=run, events=[])
    for event in launch(run.launch()):
        told.events.append(event)
        if event["kind"] == "training.started":
            (tmp_path / "go").touch()
    (started,) = told.of_kind("training.started")
    assert (started["attempt"], started["resumed_from"]) == (2, "tiny/attempt-0001/step-00000003")
    wait_until(lambda: not processes_with(str(events)))
    lines = events.read_text(encoding="utf-8").splitlines()
    orphan = Told(run=run, events=[json.loads(line) for line in lines])
    assert [event["step"] for event in orphan.of_kind("checkpoint.committed")] == [3]
    assert max(orphan.losses()) >= 6, "it did go on"
    failed = orphan.of_kind("training.failed")
    assert {(event["error"], event["exit_code"]) for event in failed} == {
        ("FencedError", FencedError.exit_code)
    }
    names = checkpoint_names(run.storage, run.record.run)
    assert [(name.attempt.number, name.step.number) for name in names] == [(1, 3), (2, 6), (2, 8)]
    assert orphan.losses() | told.losses() == undisturbed.losses()
    assert run.state_digests() == undisturbed.run.state_digests()


def wait_until(is_so: Callable[[], bool], process: subprocess.Popen[bytes] | None = None) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not is_so():
        assert process is None or process.poll() is None, "it ended"
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def processes_with(argument: str) -> list[int]:
    """Return the processes that have this argument and are no zombies."""
    found = []
    for path in Path("/proc").iterdir():
        with suppress(OSError):
            if path.name.isdigit() and argument.encode() in (path / "cmdline").read_bytes().split(
                b"\0"
            ):
                found.append(int(path.name))
    return found
