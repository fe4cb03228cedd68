"""What trackers show of an event: points of series, or a note. The same names in all of them.

A number that is not known (None) makes no point. One that is not finite does: events carry it as
text, `nan` or `inf`, because JSON has no such numbers, and it becomes that number again here.
"""

from __future__ import annotations

from collections.abc import Mapping

from strongroom.canonical import JsonObject
from strongroom.training.reporting import ReportKind

SERIES: Mapping[str, Mapping[str, str]] = {
    ReportKind.STEP: {
        "loss": "train/loss",
        "learning_rate": "train/learning_rate",
        "grad_norm": "train/grad_norm",
        "tokens_per_s": "speed/tokens_per_s",
        "step_s": "speed/step_s",
        "mfu": "speed/mfu",
        "memory_bytes": "memory/peak_bytes",
    },
    ReportKind.COMMITTED: {
        "pause_s": "save/pause_s",
        "durable_s": "save/durable_s",
        "num_bytes": "save/bytes",
        "probe_loss": "probe/loss",
    },
}
"""By kind of event: its fields that are measured, and the series each belongs to."""


def points_of(event: JsonObject) -> dict[str, float]:
    """Return what the event adds to each series.

    Raises:
        ValueError: a measured field holds something that is no number.
    """
    names = SERIES.get(event["kind"], {})
    return {
        series: float(event[name]) for name, series in names.items() if event.get(name) is not None
    }


def note_of(event: JsonObject) -> str | None:
    """Return the event in words, or None where its points say it all."""
    if event["kind"] in SERIES:
        return None
    return ", ".join(f"{name}: {value}" for name, value in event.items() if name != "kind")


def step_of(event: JsonObject) -> int | None:
    """Return the step an event belongs to, None if to none; a roll-back: where it goes on from."""
    step: int | None = event.get("to_step" if event["kind"] == ReportKind.ROLLED_BACK else "step")
    return step
