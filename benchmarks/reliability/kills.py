"""When to kill whom: moments by chance, some of them aimed at a phase of a save.

A moment begins when the ranks' notes show what it waits for, and a chosen time after that the kill
comes. What it met is another question: it is read from the notes afterwards (`marks.furthest`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.reliability.marks import Notes, Phase

Target = Literal["launcher", "agent", "rank 0", "rank 1"]
TARGETS: tuple[Target, ...] = ("launcher", "agent", "rank 0", "rank 1")
RANKS = 2
POLL_S = 0.002
LATE_S = 300.0
"""How long a moment is waited for; it comes within seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """When the kill comes, and whom it hits.

    Attributes:
        phase: begins when a rank has noted it ...
        times: ... so many times.
        after_s: seconds from then to the kill.
    """

    target: Target
    phase: Phase
    times: int = 1
    after_s: float = 0.0

    def has_come(self, notes: Sequence[Notes]) -> bool:
        """Return whether a rank has noted the phase as often as is waited for."""
        return any(note.phases.count(self.phase) >= self.times for note in notes)

    def process(self, launcher: int, notes: Sequence[Notes]) -> int:
        """Return the id of the process to kill."""
        if self.target == "launcher":
            return launcher
        if self.target == "agent":
            return notes[0].agent
        (number,) = (note.pid for note in notes if f"rank {note.rank}" == self.target)
        return number

    def wait(self, look: Callable[[], Sequence[Notes]], is_over: Callable[[], bool]) -> list[Notes]:
        """Return what is noted when the kill is due.

        Args:
            look: reads the ranks' notes.
            is_over: whether the training has ended by itself.

        Raises:
            RuntimeError: it ended before the moment came, or the moment never came.
        """
        deadline_s = time.monotonic() + LATE_S
        while not self.has_come(notes := look()) or len(notes) < RANKS:
            if is_over():
                raise RuntimeError(f"the training ended before {self} came")
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"{self} did not come within {LATE_S:g} s")
            time.sleep(POLL_S)
        time.sleep(self.after_s)
        return list(notes)
