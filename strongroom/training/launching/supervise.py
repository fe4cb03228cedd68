"""Attempts of a run, one after another, wherever each is launched.

Invariant: no attempt is started while one before it may be running, because a launcher ends only
when nothing that it started is left; and should one be left all the same, the fence in the store
keeps it from committing. Never imports torch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace

from strongroom.canonical import JsonObject
from strongroom.checkpoint.run_record import RunRecord
from strongroom.errors import StrongroomError
from strongroom.training.launching.restarts import Restart, Restarts
from strongroom.training.launching.spec import Launch
from strongroom.training.reporting import ReportKind

logger = logging.getLogger(__name__)

Events = Generator[JsonObject, None, None]


def supervise(
    spec: Launch,
    record: RunRecord,
    start: Callable[[Launch], Events],
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> Events:
    """Launch a run and yield its events; launch it again where it failed by accident.

    Each launch is an attempt of its own that goes on from the newest checkpoint that verifies. How
    often in a row is bounded by `launch.max_restarts`; a checkpoint further on than all before lets
    the count begin anew.

    Args:
        spec: the first launch.
        record: of the run.
        start: launches one attempt, as `torchrun.launch` does.
        sleep: waits.

    Raises:
        StrongroomError: what the last attempt failed with.
    """
    restarts = Restarts(
        config=spec.settings.launch,
        batch_rows=record.config["train"]["batch_rows"],
        placement=spec.placement,
    )
    while True:
        try:
            with closing(start(spec)) as events:
                for event in events:
                    if event["kind"] == ReportKind.COMMITTED:
                        restarts = restarts.after_commit(event["step"])
                    yield event
        except StrongroomError as error:
            restart, restarts = restarts.after(error)
            if restart is None:
                raise
            yield _restarting(spec, restart, error)
        else:
            return
        sleep(restart.delay_s)
        spec = replace(spec, settings=replace(spec.settings, placement=restart.placement))


def _restarting(spec: Launch, restart: Restart, error: StrongroomError) -> JsonObject:
    most = spec.settings.launch.max_restarts
    logger.warning(
        "training is started again: run=%s restart=%d of %d world_size=%d delay_s=%g after %s: %s",
        spec.run,
        restart.number,
        most,
        restart.placement.world_size,
        restart.delay_s,
        type(error).__name__,
        error,
    )
    return {
        "kind": ReportKind.RESTARTING,
        "error": type(error).__name__,
        "reason": str(error),
        "restart": restart.number,
        "max_restarts": most,
        "world_size": restart.placement.world_size,
        "delay_s": restart.delay_s,
    }
