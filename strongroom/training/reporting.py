"""What a training tells whoever launched it, as it happens: JSON objects with a `kind`.

They go to a file of JSON lines, or through the store where the launcher is on another machine. They
are news, not a record: the record is the store and its ledger. Never imports torch.

kind                    fields
training.started        run, attempt, world_size, strategy, replicas, resumed_from (checkpoint name
                        or null), exact, inexact (reasons), allreduce_ms
training.step           step, loss, learning_rate, grad_norm, step_tokens, step_s, tokens_per_s, mfu
                        (null where the hardware's peak is not known), memory_bytes
step.passed_over        step, reason, loss, grad_norm (as text where they are not finite)
training.rolled_back    from_step, to_step, checkpoint (or null: the start), reason, loss,
                        grad_norm: told by the attempt that went back, and passes over from_step
checkpoint.committed    checkpoint, checkpoint_id, step, num_bytes, pause_s, durable_s (null where
                        an earlier attempt committed it and died before it could say so),
                        train_loss, probe_loss
save.skipped            step, reason
training.stopped        step
training.finished       step
training.failed         rank, error, exit_code, message, facts
training.restarting     reason, error, restart, max_restarts, world_size, delay_s: said by who
                        launches, not by the training
preflight.finding       check, severity, message
tracker.failed          tracker, error, message: training goes on without it
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path

from strongroom.canonical import JsonObject
from strongroom.checkpoint.manifest import Manifest


class ReportKind(StrEnum):
    """What is told."""

    STARTED = "training.started"
    STEP = "training.step"
    PASSED_OVER = "step.passed_over"
    ROLLED_BACK = "training.rolled_back"
    COMMITTED = "checkpoint.committed"
    SAVE_SKIPPED = "save.skipped"
    STOPPED = "training.stopped"
    FINISHED = "training.finished"
    FAILED = "training.failed"
    RESTARTING = "training.restarting"
    FINDING = "preflight.finding"
    TRACKER_FAILED = "tracker.failed"


Report = Callable[[JsonObject], None]
"""Tells one event; safe to call from any thread."""


@contextmanager
def reporting(
    events: Path | None, through_store: AbstractContextManager[Report] | None = None
) -> Iterator[Report]:
    """Open the ways there are of telling, for as long as the context lasts; any rank may.

    Args:
        events: a file to append to.
        through_store: how to reach a launcher on another machine.
    """
    with ExitStack() as stack:
        tells: list[Report] = []
        if events is not None:
            file = stack.enter_context(events.open("a", encoding="utf-8"))

            def tell_file(event: JsonObject) -> None:
                # One write of one line to a file opened for appending: lines of ranks never mix.
                file.write(json.dumps(event, ensure_ascii=False, allow_nan=False) + "\n")
                file.flush()

            tells.append(tell_file)
        if through_store is not None:
            tells.append(stack.enter_context(through_store))
        lock = threading.Lock()

        def report(event: JsonObject) -> None:
            with lock:
                for tell in tells:
                    tell(event)

        yield report


def committed_event(manifest: Manifest, durable_s: float | None) -> JsonObject:
    """Return the event that tells of a committed checkpoint."""
    return {
        "kind": ReportKind.COMMITTED,
        "checkpoint": str(manifest.name),
        "checkpoint_id": str(manifest.checkpoint_id),
        "step": manifest.name.step.number,
        "num_bytes": manifest.num_bytes,
        "pause_s": manifest.metrics["pause_s"],
        "durable_s": durable_s,
        "train_loss": manifest.metrics["train_loss"],
        "probe_loss": manifest.metrics["probe_loss"],
    }
