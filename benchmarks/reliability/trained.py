"""What was seen of a launch, put together: its losses, and the rows in the order of the run.

Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from strongroom.canonical import JsonObject
from strongroom.training.reporting import ReportKind


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """One launch, as all its ranks saw it.

    Attributes:
        losses: by step.
        rows: of all steps, in the global order: of a step the ranks' parts in the order of ranks.
        started: the event that told of its beginning.
    """

    losses: dict[int, float]
    rows: list[int]
    started: JsonObject


def put_together(
    events: Sequence[JsonObject], batches: Sequence[Sequence[list[int]]], passes: int
) -> Trained:
    """Return one launch.

    Args:
        events: what rank 0 reported.
        batches: of each rank, the rows of its micro-batches.
        passes: how many micro-batches of a rank make a step.
    """
    (started,) = (event for event in events if event["kind"] == ReportKind.STARTED)
    losses = {e["step"]: e["loss"] for e in events if e["kind"] == ReportKind.STEP}
    rows = [
        row
        for first in range(0, len(batches[0]), passes)
        for of_rank in batches
        for batch in of_rank[first : first + passes]
        for row in batch
    ]
    return Trained(losses=losses, rows=rows, started=started)


def row_faults(rows: Sequence[int], expected: Sequence[int], num_rows: int) -> list[str]:
    """Say where rows are not each one once an epoch, or not in the order of the run.

    Args:
        rows: as they were trained on.
        expected: the order of the run.
        num_rows: of an epoch.
    """
    faults = []
    for first in range(0, len(rows), num_rows):
        epoch = rows[first : first + num_rows]
        again = sorted({row for row in epoch if epoch.count(row) > 1})
        never = sorted(set(range(num_rows)) - set(epoch)) if len(epoch) == num_rows else []
        if again or never:
            faults.append(f"epoch {first // num_rows}: rows {again} came again, {never} never")
    if list(rows) != list(expected):
        faults.append(f"expected {len(expected)} rows in the order of the run, got others")
    return faults


def largest_difference(got: dict[int, float], expected: dict[int, float]) -> float:
    """Return the largest relative difference of losses of the same steps; NaN is larger than all.

    Raises:
        ValueError: there is a step in `got` that `expected` lacks, or none at all.
    """
    if not got or not got.keys() <= expected.keys():
        raise ValueError(f"expected losses of steps {sorted(expected)}, got {sorted(got)}")
    differences = [abs(loss - expected[step]) / abs(expected[step]) for step, loss in got.items()]
    return max(differences, key=lambda difference: (math.isnan(difference), difference))
