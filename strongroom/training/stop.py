"""The wish to stop: SIGTERM or SIGINT sets a flag, and the loop acts on it between two steps."""

from __future__ import annotations

import signal
from types import FrameType


class StopRequest:
    """Whether this rank was asked to stop; the ranks agree on what follows from it."""

    def __init__(self) -> None:
        self.is_asked = False

    def listen(self) -> None:
        """Take the signals from now on; call it from the main thread, before slow imports."""
        signal.signal(signal.SIGTERM, self._ask)
        signal.signal(signal.SIGINT, self._ask)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self.is_asked = True
