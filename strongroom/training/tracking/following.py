"""A tracker in a thread of its own, so that whatever it does, training goes on.

Invariant: `tell` never waits and never raises. The first error ends the tracker, and is reported
once; what was told and not taken by then is lost to it, and to it alone.
"""

from __future__ import annotations

import logging
import threading
from queue import SimpleQueue

from strongroom.canonical import JsonObject
from strongroom.training.reporting import ReportKind
from strongroom.training.tracking.base import OnFailure, Tracker

MAX_WAITING = 10_000
"""Events that may wait for a tracker; more, and it is taken for one that hangs."""
CLOSE_S = 30.0
"""How long the end of a training waits for a tracker."""

logger = logging.getLogger(__name__)


class Follower:
    """Hands events on to one tracker.

    Args:
        name: of the tracker, for people.
        on_failure: called from another thread than the one that tells.
        max_waiting: events.
        close_s: seconds that `close` waits.
    """

    def __init__(
        self,
        name: str,
        tracker: Tracker,
        on_failure: OnFailure,
        *,
        max_waiting: int = MAX_WAITING,
        close_s: float = CLOSE_S,
    ) -> None:
        self._name = name
        self._tracker = tracker
        self._on_failure = on_failure
        self._close_s = close_s
        self._max_waiting = max_waiting
        self._waiting: SimpleQueue[JsonObject | None] = SimpleQueue()
        self._failing = threading.Lock()  # held for good by whoever reports the failure
        # A daemon: a tracker that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._follow, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def tell(self, event: JsonObject) -> None:
        """Take one event; it is dropped once the tracker has failed."""
        if self._failing.locked():
            return
        if self._waiting.qsize() < self._max_waiting:
            self._waiting.put(event)
        elif self._failing.acquire(blocking=False):
            late = TimeoutError(f"it is {self._max_waiting} events behind and hangs")
            # In a thread: whoever tells may hold what a report needs.
            reporting = (self._name, late, self._on_failure)
            threading.Thread(target=report_failure, args=reporting, daemon=True).start()

    def close(self) -> None:
        """Wait until all is told and the tracker has ended, but for `close_s` at most."""
        self._waiting.put(None)
        self._thread.join(self._close_s)
        if self._thread.is_alive():
            self._fail(TimeoutError(f"it did not end within {self._close_s:g} s"))

    def _follow(self) -> None:
        for act in (self._tell_all, self._tracker.close):
            try:
                act()
            except Exception as error:  # noqa: BLE001 -- whatever a library raises is reported
                self._fail(error)

    def _tell_all(self) -> None:
        while (event := self._waiting.get()) is not None and not self._failing.locked():
            self._tracker.tell(event)

    def _fail(self, error: Exception) -> None:
        if self._failing.acquire(blocking=False):
            report_failure(self._name, error, self._on_failure)
        else:
            logger.info("tracker failed again: tracker=%s %s", self._name, error)


def report_failure(name: str, error: Exception, on_failure: OnFailure) -> None:
    """Log and report that a tracker has ended early, which training outlives."""
    message = str(error) or type(error).__name__
    logger.warning(
        "tracking ended, training goes on: tracker=%s error=%s %s",
        name,
        type(error).__name__,
        message,
    )
    on_failure(
        {
            "kind": ReportKind.TRACKER_FAILED,
            "tracker": name,
            "error": type(error).__name__,
            "message": message,
        }
    )
