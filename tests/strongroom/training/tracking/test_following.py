from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from strongroom.canonical import JsonObject
from strongroom.training.tracking.following import Follower

LONG_S = 60.0


class Recorder:
    """A tracker that notes what it is told; it can be made to hang and to fail."""

    def __init__(self) -> None:
        self.told: list[JsonObject] = []
        self.is_closed = False
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.is_told = threading.Event()
        self.fails_at: int | None = None
        self.fails_to_close = False

    def tell(self, event: JsonObject) -> None:
        self.is_told.set()
        assert self.may_go_on.wait(LONG_S)
        if len(self.told) == self.fails_at:
            raise OSError(28, "No space left on device")
        self.told.append(event)

    def close(self) -> None:
        self.is_closed = True
        if self.fails_to_close:
            raise TimeoutError


class Failures:
    """Notes what is reported; `came` is set with the first."""

    def __init__(self) -> None:
        self.events: list[JsonObject] = []
        self.threads: list[threading.Thread] = []
        self.came = threading.Event()

    def __call__(self, event: JsonObject) -> None:
        self.events.append(event)
        self.threads.append(threading.current_thread())
        self.came.set()


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    recorder = Recorder()
    yield recorder
    recorder.may_go_on.set()


def steps(n: int) -> list[JsonObject]:
    return [{"kind": "training.step", "step": step} for step in range(n)]


def test_everything_is_told_in_order_before_the_end(recorder: Recorder) -> None:
    failures = Failures()
    follower = Follower("test", recorder, failures)
    for event in steps(500):
        follower.tell(event)
    follower.close()
    assert recorder.told == steps(500)
    assert recorder.is_closed
    assert failures.events == []


def test_a_tracker_that_hangs_holds_nobody_up(recorder: Recorder) -> None:
    failures = Failures()
    recorder.may_go_on.clear()
    follower = Follower("test", recorder, failures, max_waiting=10, close_s=0.05)
    for event in steps(100):
        follower.tell(event)
    assert failures.came.wait(LONG_S)
    follower.close()
    assert [event["error"] for event in failures.events] == ["TimeoutError"]
    assert "10 events behind" in failures.events[0]["message"]


def test_one_that_recovers_too_late_is_told_no_more_and_ends(recorder: Recorder) -> None:
    failures = Failures()
    recorder.may_go_on.clear()
    follower = Follower("test", recorder, failures, max_waiting=10)
    follower.tell(steps(1)[0])
    assert recorder.is_told.wait(LONG_S)
    for event in steps(20):
        follower.tell(event)
    assert failures.came.wait(LONG_S)
    recorder.may_go_on.set()
    follower.close()
    assert len(recorder.told) == 1
    assert recorder.is_closed
    assert len(failures.events) == 1


def test_the_end_waits_for_a_slow_tracker_but_not_for_ever(recorder: Recorder) -> None:
    failures = Failures()
    recorder.may_go_on.clear()
    follower = Follower("test", recorder, failures, close_s=0.05)
    follower.tell(steps(1)[0])
    started = time.monotonic()
    follower.close()
    assert time.monotonic() - started < LONG_S / 2
    assert "did not end within 0.05 s" in failures.events[0]["message"]


def test_the_first_error_ends_the_tracker_and_is_reported_once(recorder: Recorder) -> None:
    failures = Failures()
    recorder.fails_at = 3
    follower = Follower("test", recorder, failures)
    for event in steps(10):
        follower.tell(event)
    follower.close()
    assert recorder.told == steps(3)
    assert recorder.is_closed
    assert failures.events == [
        {
            "kind": "tracker.failed",
            "tracker": "test",
            "error": "OSError",
            "message": "[Errno 28] No space left on device",
        }
    ]
    follower.tell(steps(1)[0])
    assert len(failures.events) == 1


def test_what_is_told_to_a_tracker_that_has_failed_is_not_kept(recorder: Recorder) -> None:
    failures = Failures()
    recorder.fails_at = 0
    follower = Follower("test", recorder, failures)
    follower.tell(steps(1)[0])
    follower.close()
    kept = follower._waiting.qsize()
    for event in steps(100):
        follower.tell(event)
    assert follower._waiting.qsize() == kept


def test_a_tracker_that_cannot_end_well_is_reported(recorder: Recorder) -> None:
    failures = Failures()
    recorder.fails_to_close = True
    follower = Follower("test", recorder, failures)
    follower.close()
    assert [(event["error"], event["message"]) for event in failures.events] == [
        ("TimeoutError", "TimeoutError")
    ]


def test_one_that_failed_before_is_not_reported_again_at_the_end(recorder: Recorder) -> None:
    failures = Failures()
    recorder.fails_at, recorder.fails_to_close = 0, True
    follower = Follower("test", recorder, failures)
    follower.tell(steps(1)[0])
    follower.close()
    assert [event["error"] for event in failures.events] == ["OSError"]


def test_who_tells_may_hold_the_lock_that_a_report_takes(recorder: Recorder) -> None:
    lock = threading.Lock()
    failures = Failures()

    def report(event: JsonObject) -> None:
        with lock:
            failures(event)

    recorder.may_go_on.clear()
    follower = Follower("test", recorder, report, max_waiting=1, close_s=0.05)
    with lock:
        for event in steps(10):
            follower.tell(event)
        assert failures.events == []
    assert failures.came.wait(LONG_S)
    assert threading.current_thread() not in failures.threads
    follower.close()
