"""A training that takes no step is ended, and says where every thread stood.

A hang shows itself by nothing: a collective that one rank never enters waits for ever on all
others. Every rank watches itself, in a thread that needs nothing of the others; should even the
interpreter be held, `faulthandler` ends the process without it, a while later.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from strongroom.errors import HungError

BACKSTOP_S = 30.0
"""How much later the process is ended where no thread of Python could do it."""
POLLS = 20
"""How often the time since the last beat is looked at, in the time allowed."""

logger = logging.getLogger(__name__)


class Watchdog:
    """Ends the process where `beat` is not called for `timeout_s` seconds.

    Args:
        timeout_s: the longest time between two beats.
        tell: is given the error, before the end.
        end: ends the process, with an exit code.
    """

    def __init__(
        self,
        timeout_s: float,
        *,
        tell: Callable[[HungError], None],
        end: Callable[[int], None] = os._exit,
    ) -> None:
        self._timeout_s = timeout_s
        self._tell = tell
        self._end = end
        self._doing = "starting"
        self._beaten = time.monotonic()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        self.beat("starting")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()

    def beat(self, doing: str) -> None:
        """Note that training goes on; `doing` is what it does next."""
        self._doing = doing
        self._beaten = time.monotonic()
        faulthandler.dump_traceback_later(self._timeout_s + BACKSTOP_S, exit=True, file=_stderr())

    @contextmanager
    def paused(self, doing: str) -> Iterator[None]:
        """Allow any time for what has a limit of its own, such as an upload."""
        faulthandler.cancel_dump_traceback_later()
        self._beaten = float("inf")
        try:
            yield
        finally:
            self.beat(doing)

    def _watch(self) -> None:
        while not self._closed.wait(self._timeout_s / POLLS):
            idle_s = time.monotonic() - self._beaten
            if idle_s > self._timeout_s:
                faulthandler.dump_traceback(file=_stderr())
                try:
                    self._tell(self._error(idle_s))
                finally:
                    self._end(HungError.exit_code)
                return

    def _error(self, idle_s: float) -> HungError:
        return HungError(
            f"{self._doing}: expected it to end within {self._timeout_s:g} s "
            f"(launch.hang_timeout_s), got nothing for {idle_s:.0f} s; where every thread stood is "
            "on standard error. The same command goes on from the newest checkpoint that verifies"
        )


def _stderr() -> int:
    """Return the descriptor of standard error: what replaces `sys.stderr` may have none."""
    return sys.__stderr__.fileno() if sys.__stderr__ is not None else 2
