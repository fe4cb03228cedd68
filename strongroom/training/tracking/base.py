"""What a tracker is, and what it is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from strongroom.canonical import JsonObject

OnFailure = Callable[[JsonObject], None]
"""Is given one `tracker.failed` event for each tracker that ends early."""


class Tracker(Protocol):
    """Is told the events of a training (see `training.reporting`), in their order."""

    def tell(self, event: JsonObject) -> None:
        """Take one event."""
        ...

    def close(self) -> None:
        """End, after all that was told is where it belongs; nothing is told afterwards."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Tracked:
    """One attempt of a run, as a tracker knows it.

    Attributes:
        folder: where files go.
        run: key of the run.
        step: optimizer steps taken before this attempt; 0 for a fresh start.
        settings: the run's configuration, as JSON.
    """

    folder: Path
    run: str
    attempt: int
    step: int
    settings: JsonObject
