"""Attempts of a run one after another, with launches that are stand-ins."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Generator, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from strongroom.canonical import JsonObject
from strongroom.checkpoint.run_record import RunRecord
from strongroom.errors import (
    HungError,
    PreemptedError,
    RankLostError,
    StoreUnreachableError,
    StrongroomError,
    TrainingError,
)
from strongroom.names import RunKey
from strongroom.training.config import LaunchConfig
from strongroom.training.launching.spec import Launch, LaunchSettings
from strongroom.training.launching.supervise import supervise
from strongroom.training.placement import Placement
from strongroom.training.wording import in_words

TWO = Placement(strategy="fsdp2", world_size=2)
STARTED = {"kind": "training.started", "attempt": 1}
FINISHED = {"kind": "training.finished", "step": 9}
LOST = RankLostError("a rank was ended by signal 9")


def committed(step: int) -> JsonObject:
    return {"kind": "checkpoint.committed", "step": step}


def launch_of(**launch: object) -> Launch:
    config = LaunchConfig(**{"restart_delay_s": 2.0, **launch})  # type: ignore[arg-type]
    return Launch(
        store_url="nowhere",
        run=RunKey("r"),
        keys=Path("keys"),
        cache=Path("cache"),
        settings=LaunchSettings(placement=TWO, launch=config),
        grace_s=7.0,
    )


class Attempts:
    """Launches that say what they are told to, and end as they are told to."""

    def __init__(self, *ends: tuple[Iterable[JsonObject], BaseException | None]) -> None:
        self._ends = list(ends)
        self.launched: list[Launch] = []
        self.running = 0
        self.slept: list[float] = []
        # Kept, so that none of them ends because nobody knows it any more.
        self._kept: list[Generator[JsonObject, None, None]] = []

    def start(self, spec: Launch) -> Generator[JsonObject, None, None]:
        self._kept.append(self._start(spec))
        return self._kept[-1]

    def _start(self, spec: Launch) -> Generator[JsonObject, None, None]:
        self.launched.append(spec)
        said, error = self._ends.pop(0)
        assert self.running == 0, "an attempt before it is still there"
        self.running += 1
        try:
            yield from said
            if error is not None:
                raise error
        finally:
            self.running -= 1

    def sleep(self, seconds: float) -> None:
        assert self.running == 0, "it waits while an attempt is there"
        self.slept.append(seconds)

    def supervised(self, spec: Launch) -> Generator[JsonObject, None, None]:
        record = SimpleNamespace(config={"train": {"batch_rows": 8}})
        return supervise(spec, cast("RunRecord", record), self.start, sleep=self.sleep)


def test_what_goes_well_is_handed_on_as_it_is() -> None:
    attempts = Attempts(([STARTED, committed(3), FINISHED], None))
    spec = launch_of()
    assert list(attempts.supervised(spec)) == [STARTED, committed(3), FINISHED]
    assert attempts.launched == [spec]
    assert attempts.slept == []


def test_an_accident_is_told_and_the_run_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    attempts = Attempts(([STARTED, committed(3)], LOST), ([STARTED, FINISHED], None))
    spec = launch_of(max_restarts=1)
    with caplog.at_level(logging.WARNING, logger="strongroom.training.launching.supervise"):
        events = list(attempts.supervised(spec))
    restarting = {
        "kind": "training.restarting",
        "error": "RankLostError",
        "reason": str(LOST),
        "restart": 1,
        "max_restarts": 1,
        "world_size": 2,
        "delay_s": 2.0,
    }
    assert events == [STARTED, committed(3), restarting, STARTED, FINISHED]
    assert attempts.launched == [spec, spec]
    assert attempts.slept == [2.0]
    assert "restart=1 of 1" in caplog.text
    assert "signal 9" in in_words(restarting, 9)


def test_it_gives_up_with_the_last_failure_after_as_many_restarts() -> None:
    last = HungError("the last one")
    attempts = Attempts(([], LOST), ([STARTED], StoreUnreachableError("away")), ([STARTED], last))
    events: list[JsonObject] = []
    with pytest.raises(HungError) as caught:
        events.extend(attempts.supervised(launch_of(max_restarts=2)))
    assert caught.value is last
    assert attempts.slept == [2.0, 4.0]
    assert len(attempts.launched) == 3


def test_getting_further_lets_the_count_begin_anew_and_coming_to_the_same_place_does_not() -> None:
    further = [([committed(step)], LOST) for step in range(1, 6)]
    same: list[tuple[list[JsonObject], BaseException | None]] = [([committed(5)], LOST)] * 2
    attempts = Attempts(*further, *same)
    with pytest.raises(RankLostError):
        list(attempts.supervised(launch_of(max_restarts=1)))
    # The first of those that come no further is the one restart after step 5.
    assert len(attempts.launched) == 6
    assert attempts.slept == [2.0] * 5


@pytest.mark.parametrize(
    "error",
    [TrainingError("loss is not finite"), PreemptedError("stopped as asked")],
    ids=lambda error: type(error).__name__,
)
def test_what_is_no_accident_is_raised_at_once(error: StrongroomError) -> None:
    attempts = Attempts(([STARTED], error))
    with pytest.raises(type(error)) as caught:
        list(attempts.supervised(launch_of(max_restarts=9)))
    assert caught.value is error
    assert attempts.slept == []


def test_a_rank_lost_twice_running_is_done_without_and_all_else_stays() -> None:
    attempts = Attempts(([], LOST), ([], LOST), ([FINISHED], None))
    events = list(attempts.supervised(launch_of(max_restarts=2, min_world_size=1)))
    assert [spec.placement.world_size for spec in attempts.launched] == [2, 2, 1]
    assert attempts.launched[-1].placement.micro_batch_rows == 4
    assert [event["world_size"] for event in events if "world_size" in event] == [2, 1]
    first, *_, last = attempts.launched
    assert (last.run, last.grace_s, last.settings.launch) == (
        first.run,
        first.grace_s,
        first.settings.launch,
    )


def test_leaving_early_ends_the_attempt_that_is_there() -> None:
    attempts = Attempts(([STARTED, committed(3), FINISHED], None))
    events = attempts.supervised(launch_of())
    assert next(events) == STARTED
    assert attempts.running == 1
    events.close()
    assert attempts.running == 0


def test_an_interruption_ends_it_and_passes_through() -> None:
    attempts = Attempts(([STARTED], KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        list(attempts.supervised(launch_of(max_restarts=9)))
    assert attempts.running == 0
    assert len(attempts.launched) == 1


def test_an_interruption_of_the_wait_starts_nothing_more() -> None:
    attempts = Attempts(([STARTED], LOST))

    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    record = cast("RunRecord", SimpleNamespace(config={"train": {"batch_rows": 8}}))
    with pytest.raises(KeyboardInterrupt):
        list(supervise(launch_of(), record, attempts.start, sleep=interrupted))
    assert len(attempts.launched) == 1


def test_the_supervisor_needs_no_torch() -> None:
    code = (
        "import sys, strongroom.training.launching.supervise; "
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
