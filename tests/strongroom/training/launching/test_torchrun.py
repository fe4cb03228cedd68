"""Launching, stopping and killing: first of stand-ins that take no time, then of trainings."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

import pytest

from strongroom.canonical import JsonObject
from strongroom.checkpoint.catalogue import checkpoint_names
from strongroom.errors import (
    FencedError,
    NothingToResumeError,
    PreemptedError,
    RankLostError,
    StoreMissingError,
    StrongroomError,
    TrainingError,
)
from strongroom.names import CheckpointName, RunKey
from strongroom.training.failure import error_from
from strongroom.training.launching import torchrun as launching
from strongroom.training.launching.agent import exit_code
from strongroom.training.launching.restarts import is_accident
from strongroom.training.launching.spec import Launch, LaunchSettings
from strongroom.training.launching.torchrun import command, environment, launch
from strongroom.training.placement import Placement
from tests.support.launcher import Launcher
from tests.support.training_run import TrainingRun, make_training_run

STARTED = {"kind": "training.started", "run": "r", "attempt": 1, "world_size": 1}
STOPPED = {"kind": "training.stopped", "step": 5}
FINISHED = {"kind": "training.finished", "step": 9}
FAILED = {
    "kind": "training.failed",
    "rank": 0,
    "error": "NothingToResumeError",
    "exit_code": 62,
    "message": "run r: none can be used",
    "facts": {},
}

STAND_IN = """
import json, os, signal, sys, time
file, pid_file, said, at_stop, code = json.loads(sys.argv[1])
with open(pid_file, "w") as out:
    out.write(str(os.getpid()))
def tell(events):
    with open(file, "a") as out:
        for event in events:
            out.write(json.dumps(event) + "\\n")
            out.flush()
def stop(*_):
    if at_stop is not None:
        time.sleep(0.3)
        tell(at_stop)
        sys.exit(75)
signal.signal(signal.SIGTERM, stop)
tell(said)
if code is not None and code < 0:
    os.kill(os.getpid(), -code)
if code is not None:
    sys.exit(code)
while True:
    time.sleep(0.05)
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class StandIn(Launch):
    """A process that says `said`, then ends with `code`, or waits and says `at_stop` at SIGTERM.

    With neither it never ends by itself.
    """

    said: list[JsonObject]
    at_stop: list[JsonObject] | None = None
    code: int | None = None

    def stand_in(self, events: Path) -> list[str]:
        arguments = [str(events), str(self.cache / "pid"), self.said, self.at_stop, self.code]
        return [sys.executable, "-c", STAND_IN, json.dumps(arguments)]

    @property
    def is_running(self) -> bool:
        try:
            os.kill(int((self.cache / "pid").read_text(encoding="utf-8")), 0)
        except ProcessLookupError:
            return False
        return True


@pytest.fixture
def stand_in(tmp_path: Path) -> Callable[..., StandIn]:
    def make(
        said: list[JsonObject],
        *,
        at_stop: list[JsonObject] | None = None,
        code: int | None = None,
        grace_s: float = 30.0,
    ) -> StandIn:
        return StandIn(
            store_url="nowhere",
            run=RunKey("r"),
            keys=tmp_path,
            cache=tmp_path,
            settings=LaunchSettings(placement=Placement(strategy="fsdp2", world_size=1)),
            grace_s=grace_s,
            said=said,
            at_stop=at_stop,
            code=code,
        )

    return make


def launch_it(spec: StandIn) -> Generator[JsonObject, None, None]:
    return launch(spec, command=lambda _, events: spec.stand_in(events))


def interrupt_soon(number: signal.Signals) -> None:
    """Send this process a signal while it waits in `launch`."""
    threading.Timer(0.3, os.kill, (os.getpid(), number)).start()


def hear(spec: StandIn, heard: list[JsonObject], *, then: signal.Signals) -> None:
    """Launch, and send this process a signal soon after the training has started."""
    for event in launch_it(spec):
        heard.append(event)
        if event == STARTED:
            interrupt_soon(then)


def test_events_are_handed_on_until_the_end(stand_in: Callable[..., StandIn]) -> None:
    spec = stand_in([STARTED, FINISHED], code=0)
    assert list(launch_it(spec)) == [STARTED, FINISHED]
    assert not spec.is_running


def test_a_failure_arrives_as_the_error_it_was(stand_in: Callable[..., StandIn]) -> None:
    with pytest.raises(NothingToResumeError, match="none can be used") as caught:
        list(launch_it(stand_in([STARTED, FAILED], code=62)))
    assert caught.value.exit_code == 62


@pytest.mark.parametrize("code", [0, 1])
def test_an_end_without_a_word_is_an_error(stand_in: Callable[..., StandIn], code: int) -> None:
    with pytest.raises(TrainingError, match=f"ended with {code}"):
        list(launch_it(stand_in([STARTED], code=code)))


def test_a_rank_that_was_killed_is_told_from_what_others_say_of_it(
    stand_in: Callable[..., StandIn],
) -> None:
    broken = FAILED | {"error": "RuntimeError", "message": "connection closed by peer"}
    for said in ([STARTED], [STARTED, broken]):
        with pytest.raises(RankLostError, match="ended by signal 9"):
            list(launch_it(stand_in(said, code=137)))
    # What a rank does say of itself counts more, but for what follows from the loss of another.
    with pytest.raises(NothingToResumeError):
        list(launch_it(stand_in([STARTED, FAILED], code=137)))
    for error in ("SaveError", "PeerError"):
        with pytest.raises(RankLostError):
            list(launch_it(stand_in([STARTED, FAILED | {"error": error}], code=137)))
        with pytest.raises(TrainingError) as caught:
            list(launch_it(stand_in([STARTED, FAILED | {"error": error}], code=60)))
        assert type(caught.value).__name__ == error


def test_torchrun_itself_may_be_killed(stand_in: Callable[..., StandIn]) -> None:
    with pytest.raises(RankLostError, match="ended by signal 9"):
        list(launch_it(stand_in([STARTED], code=-signal.SIGKILL)))


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        ([(60, 7), (60, 7)], 60),
        ([(60, 7), (-9, 8)], 137),  # the first only could not reach the second any more
        ([(-9, 7), (-15, 8)], 137),
        ([(61, 7), (-15, 9)], 61),  # by torchrun, because the first had failed
        ([(65, 7), (-9, 37)], 65),  # likewise, because SIGTERM did not end it
        ([(-15, 7)], 143),
    ],
)
def test_the_cause_is_told_from_what_followed_from_it(
    ends: list[tuple[int, int]], code: int
) -> None:
    assert exit_code(ends) == code


def test_sigterm_stops_the_training_and_its_last_words_are_heard(
    stand_in: Callable[..., StandIn],
) -> None:
    spec = stand_in([STARTED], at_stop=[STOPPED])
    heard: list[JsonObject] = []
    with pytest.raises(PreemptedError, match="step 5") as caught:
        hear(spec, heard, then=signal.SIGTERM)
    assert heard == [STARTED, STOPPED]
    assert caught.value.exit_code == 75
    assert not spec.is_running
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_an_interruption_is_raised_again_once_the_training_has_stopped(
    stand_in: Callable[..., StandIn],
) -> None:
    spec = stand_in([STARTED], at_stop=[STOPPED])
    heard: list[JsonObject] = []
    with pytest.raises(KeyboardInterrupt):
        hear(spec, heard, then=signal.SIGINT)
    assert heard == [STARTED, STOPPED]
    assert not spec.is_running


@pytest.mark.parametrize(
    ("error", "expected"),
    [("SaveError", TrainingError), ("HungError", TrainingError), ("FencedError", FencedError)],
)
def test_what_fails_by_accident_while_it_stops_is_none_to_start_again(
    stand_in: Callable[..., StandIn], error: str, expected: type[StrongroomError]
) -> None:
    spec = stand_in([STARTED], at_stop=[FAILED | {"error": error}])
    with pytest.raises(expected, match="none can be used") as caught:
        hear(spec, [], then=signal.SIGTERM)
    assert type(caught.value) is expected
    assert not is_accident(caught.value)


def test_what_does_not_stop_in_time_is_killed(
    stand_in: Callable[..., StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "KILL_MARGIN_S", 0.1)
    spec = stand_in([STARTED], grace_s=0.2)
    with pytest.raises(TrainingError, match="was killed"):
        hear(spec, [], then=signal.SIGTERM)
    assert not spec.is_running


def test_leaving_early_stops_the_training(stand_in: Callable[..., StandIn]) -> None:
    spec = stand_in([STARTED], at_stop=[STOPPED])
    events = launch_it(spec)
    assert next(events) == STARTED
    events.close()
    assert not spec.is_running


def test_stopped_before_it_began_is_not_a_failure(stand_in: Callable[..., StandIn]) -> None:
    spec = stand_in([], at_stop=[])
    interrupt_soon(signal.SIGTERM)
    with pytest.raises(PreemptedError, match="before its first step"):
        list(launch_it(spec))


def test_the_launcher_needs_no_torch() -> None:
    code = (
        "import sys, strongroom.training.launching.torchrun; "
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- real trainings -------------------------------------------------------------------


def series(events: list[JsonObject], name: str = "loss") -> dict[int, float]:
    """Return one number of every step reported."""
    return {e["step"]: e[name] for e in events if e["kind"] == "training.step"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """When to send which signal to a launcher: at a step, or when a file of the run appears.

    Attributes:
        at_file: a pattern from the run's folder.
        at_bytes: how large it must be at least.
    """

    number: signal.Signals
    at_step: int | None = None
    at_file: str | None = None
    at_bytes: int = 0


def launch_until(run: TrainingRun, moment: Moment) -> tuple[list[JsonObject], int]:
    """Launch, send the signal at its moment, and return what was reported and the exit code."""
    folder = Path(run.store_url.removeprefix("file://")) / "runs" / str(run.record.run)
    launcher = Launcher(run.launch())
    over = threading.Event()

    def watch(file: str) -> None:
        while not over.is_set():
            if any(_size(path) >= moment.at_bytes for path in folder.glob(file)):
                launcher.send(moment.number)
                return
            time.sleep(0.0005)

    if moment.at_file is not None:
        threading.Thread(target=watch, args=(moment.at_file,), daemon=True).start()
    events = []
    for event in launcher.events():
        events.append(event)
        if event["kind"] == "training.step" and event["step"] == moment.at_step:
            launcher.send(moment.number)
    over.set()
    return events, launcher.wait()


STEPS = 150
"""A step takes milliseconds, a signal many of them to reach the ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """A run that was never stopped."""

    run: TrainingRun
    events: list[JsonObject]


def finish(run: TrainingRun) -> Finished:
    return Finished(run=run, events=list(launch(run.launch())))


@pytest.mark.e2e
@pytest.mark.timeout(900)
def test_killed_and_stopped_while_processes_write_deltas_equals_never_stopped(
    tmp_path: Path,
) -> None:
    """Saved by threads and in full it is tried by `tests/e2e/test_soak.py`."""
    plain = {"every_steps": 10}
    expected = finish(make_training_run(tmp_path / "never-stopped", steps=STEPS, save=plain))
    assert list(series(expected.events)) == list(range(1, STEPS + 1))
    deltas = {"writer": "process", "full_every": 3, "delta_min_share": 0.0, "when_busy": "skip"}
    save = {**plain, **deltas}
    run = make_training_run(tmp_path / "stopped", steps=STEPS, save=save)
    kill, term = signal.SIGKILL, signal.SIGTERM
    moments = [
        Moment(number=kill, at_step=2),  # nothing is committed yet
        Moment(number=kill, at_file="../../.tmp/*", at_bytes=50_000),  # in the middle of a save
        Moment(number=term, at_step=11),
        Moment(number=kill, at_file="attempt-0004/*/manifest.json"),  # before the ledger knows
    ]
    seen: dict[int, float] = {}
    for moment in moments:
        events, code = launch_until(run, moment)
        seen |= series(events)
        assert code == (PreemptedError.exit_code if moment.number == term else -kill)
    committed = {name.attempt.number: name for name in _names(run)}
    # The launcher dies at once, its ranks a little later: attempt 2 may have ended its save.
    assert {3, 4} <= set(committed) <= {2, 3, 4}
    assert 10 < committed[3].step.number < committed[4].step.number < STEPS
    last = list(launch(run.launch()))
    (started,) = (event for event in last if event["kind"] == "training.started")
    assert started["resumed_from"] == str(committed[4])
    assert seen | series(last) == series(expected.events)
    assert run.state_digests()[STEPS] == expected.run.state_digests()[STEPS]


@pytest.mark.e2e
@pytest.mark.timeout(900)
def test_the_number_of_ranks_does_not_change_the_mathematics(tmp_path: Path) -> None:
    one, two = (
        finish(make_training_run(tmp_path / str(size), world_size=size, method="full", dropout=0.0))
        for size in (1, 2)
    )
    assert series(two.events) == pytest.approx(series(one.events), rel=1e-6)
    # Adam does not feel the scale of a gradient, clipping hides it: only the norm shows it.
    norms = [series(done.events, "grad_norm") for done in (one, two)]
    assert norms[1] == pytest.approx(norms[0], rel=1e-4)


@pytest.mark.e2e
def test_what_a_worker_fails_with_ends_torchrun_too_and_is_reported(tmp_path: Path) -> None:
    run = make_training_run(tmp_path / "run")
    empty = str(tmp_path / "empty")
    spec = Launch.of(run.record, store_url=empty, keys=run.keys, cache=run.cache)
    events = tmp_path / "events.jsonl"
    done = subprocess.run(command(spec, events), env=environment(spec), check=False)
    assert done.returncode == StoreMissingError.exit_code
    told = [json.loads(line) for line in events.read_text(encoding="utf-8").splitlines()]
    assert told
    assert {event["kind"] for event in told} == {"training.failed"}
    with pytest.raises(StoreMissingError, match="no strongroom store here"):
        raise error_from(told[0])


def _size(path: Path) -> int:
    """Return the size of a file that may go at any moment, -1 where it has gone."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


def _names(run: TrainingRun) -> list[CheckpointName]:
    return checkpoint_names(run.storage, run.record.run)
