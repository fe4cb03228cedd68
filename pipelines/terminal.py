"""What a person at the terminal sees: plain words on what Dagster does in this process.

Dagster captures the output of every step and repeats it on this process's own; its repetition goes
to a log file, and what is said here keeps the terminal to itself.
"""

import logging
import os
import sys
import time
from pathlib import Path

import dagster as dg
from dagster import DagsterEventType, EventLogEntry
from rich.console import Console

DONE = {
    "base_model": "base model stored",
    "curated_dataset": "curated dataset stored",
    "adapted_tokenizer": "tokenizer measured and stored",
    "finetune_run": "training registered",
    "checkpoint": "checkpoint registered",
    "verified_checkpoint": "verified",
    "evaluated_checkpoint": "evaluated",
    "promoted_checkpoint": "in staging",
    "production_model": "in production",
}
SHOWN = ("num_train", "num_held_out", "verify_s", "held_out_loss", "base_loss")
"""Numbers worth a word beside what was done."""
WIDTH = 120


class Terminal:
    """Says what happens, as it happens; `failed_checks` keeps the checks that did not pass."""

    def __init__(self, *, log: Path | None) -> None:
        self._started = time.monotonic()
        self.failed_checks: list[str] = []
        # Copies, because Dagster points the descriptors 1 and 2 elsewhere while a step runs.
        self.out, self.err = _console(1), _console(2)
        self.log = log
        if log is not None:
            file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(file, 1)
            os.dup2(file, 2)
            os.close(file)
            logging.basicConfig(level=logging.INFO, stream=sys.stderr)

    def say(self, text: str, style: str | None = None) -> None:
        """Print one line, with the seconds since the start."""
        elapsed = time.monotonic() - self._started
        self.out.print(f"[{elapsed:6.1f} s] {text}", style=style, markup=False, soft_wrap=True)

    def hear(self, entry: EventLogEntry) -> None:
        """Say what an event of a run means to a person."""
        if entry.dagster_event is None:
            if int(entry.level) >= logging.INFO:
                self.say(entry.user_message)
            return
        event = entry.dagster_event
        if event.event_type is DagsterEventType.ASSET_MATERIALIZATION:
            self._materialised(event.step_materialization_data.materialization)
        elif event.event_type is DagsterEventType.ASSET_CHECK_EVALUATION:
            self._checked(event.asset_check_evaluation_data)

    def _materialised(self, event: dg.AssetMaterialization) -> None:
        asset = event.asset_key.to_user_string()
        where = f"{event.partition}: " if event.partition else ""
        numbers = [
            f"{name} {value.value:.4g}"
            for name, value in event.metadata.items()
            if name in SHOWN and isinstance(value.value, int | float)
        ]
        self.say(
            f"{where}{DONE.get(asset, asset)}" + (f" ({', '.join(numbers)})" if numbers else "")
        )

    def _checked(self, check: dg.AssetCheckEvaluation) -> None:
        if check.passed:
            return
        where = f"{check.partition}: " if check.partition else ""
        facts = "; ".join(f"{name} {value.value}" for name, value in check.metadata.items())
        self.failed_checks.append(f"{check.check_name}: {facts}")
        self.say(
            f"{where}{check.asset_key.to_user_string()}: check {check.check_name} FAILED: {facts}",
            "red",
        )


def _console(descriptor: int) -> Console:
    copy = os.fdopen(os.dup(descriptor), "w", encoding="utf-8")
    # A file or a pipe has no width of its own; the table needs this much.
    return Console(file=copy, highlight=False, width=None if copy.isatty() else WIDTH)
