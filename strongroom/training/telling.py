"""What rank 0 tells of an attempt besides its steps, and to whom."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from strongroom.canonical import JsonObject
from strongroom.checkpoint.run_record import RunRecord
from strongroom.training.launching.spec import LaunchSettings
from strongroom.training.opening import Opening, started_event
from strongroom.training.preflight.fabric import fabric_findings
from strongroom.training.preflight.numbers import values
from strongroom.training.reporting import Report, ReportKind
from strongroom.training.tracking.opening import open_trackers

logger = logging.getLogger(__name__)


@contextmanager
def tracked(  # noqa: PLR0913 -- what a tracker is told of an attempt
    report: Report,
    settings: LaunchSettings,
    record: RunRecord,
    opening: Opening,
    *,
    step: int,
    folder: Path,
) -> Iterator[Report]:
    """Yield what tells an event to the trackers too, for as long as the context lasts.

    Args:
        report: tells an event to whoever launched.
        settings: which trackers.
        record: of the run.
        opening: of the attempt.
        step: optimizer steps taken before it.
        folder: where trackers keep files, unless they are told where.
    """
    tracker = open_trackers(
        settings.tracking,
        folder=folder,
        run=str(record.run),
        attempt=0 if opening.attempt is None else opening.attempt.number,
        step=step,
        settings=record.config,
        on_failure=report,
    )

    def tell(event: JsonObject) -> None:
        report(event)
        tracker.tell(event)

    with closing(tracker):
        yield tell


def tell_start(
    report: Report,
    settings: LaunchSettings,
    record: RunRecord,
    opening: Opening,
    *,
    allreduce_ms: float,
) -> None:
    """Tell that an attempt trains from now on, and what the latency of its ranks says."""
    placement = settings.placement
    report(started_event(record, placement, opening, allreduce_ms=allreduce_ms))
    numbers = values(settings.preflight.numbers)
    for found in fabric_findings(allreduce_ms, placement.world_size, os.environ, numbers=numbers):
        logger.warning("%s: %s", found.check, found.message)
        report(found.event(stops=False))  # it has begun


def tell_rolled_back(
    report: Report, opening: Opening, *, from_step: int, to_step: int, trouble: JsonObject
) -> None:
    """Tell that an attempt goes back, and why: `trouble` is what the attempt before it says."""
    origin = opening.resume_from
    told = {
        "from_step": from_step,
        "to_step": to_step,
        "checkpoint": None if origin is None else str(origin.name),
        **trouble,
    }
    logger.warning("rolled back: %s", told)
    report({"kind": ReportKind.ROLLED_BACK, **told})
