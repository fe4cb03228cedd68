"""What must hold of a launch that went on from a checkpoint; each question says what does not.

Nothing is trained here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from benchmarks.reliability.cells import Cell
from benchmarks.reliability.trained import Trained
from strongroom.canonical import JsonObject
from strongroom.checkpoint.attempts import newest_attempt, read_attempt
from strongroom.checkpoint.catalogue import Committed, list_checkpoints
from strongroom.checkpoint.container import raw_bytes
from strongroom.checkpoint.reading.reader import CheckpointReader
from strongroom.names import RunKey
from strongroom.storage.base import Storage

TRAINED = ("model.", "optim.")
TOLERANCE = 1e-6
"""Of a loss, relative: how far sums may be apart that were added up in another order."""


def state_faults(storage: Storage, saved: Committed, witness: Storage) -> list[str]:
    """Say what was restored otherwise than it was saved.

    Args:
        storage: holds the checkpoint `saved`.
        saved: what was gone on from.
        witness: holds what was saved again right after it was restored.
    """
    (restored,) = list_checkpoints(witness)
    expected, got = _digests(storage, saved), _digests(witness, restored)
    # Random state is a rank's own: compared for the ranks that both have.
    in_both = {name for name in expected.keys() | got.keys() if name.startswith(TRAINED)}
    in_both |= expected.keys() & got.keys()
    wrong = sorted(name for name in in_both if expected.get(name) != got.get(name))
    faults = [f"restored tensors differ: {', '.join(wrong)}"] if wrong else []
    if not in_both.intersection(name for name in expected if name.startswith("rng.0.")):
        faults.append("random state of rank 0: expected it in both, got none")
    if _state(saved) != _state(restored):
        faults.append(f"restored state: expected {_state(saved)}, got {_state(restored)}")
    return faults


def num_trained(saved: Committed) -> int:
    """Return how many tensors of model and optimizer there are to compare."""
    return sum(entry.name.startswith(TRAINED) for entry in saved.manifest.tensors)


def loss_faults(cell: Cell, trained: Trained, steps: Sequence[int], difference: float) -> list[str]:
    """Say what is wrong with the losses after the resume.

    Args:
        cell: which.
        trained: what went on.
        steps: the steps it had to take.
        difference: the largest, relative, to the run that was never stopped.
    """
    if list(trained.losses) != list(steps):
        return [f"expected the steps {list(steps)}, got {list(trained.losses)}"]
    limit = 0.0 if cell.is_same else TOLERANCE
    if difference <= limit:
        return []
    return [f"losses: expected a relative difference of at most {limit:g}, got {difference:.3g}"]


def record_faults(cell: Cell, storage: Storage, run: RunKey, started: JsonObject) -> list[str]:
    """Say where what is recorded of the newest attempt is not what it was.

    Args:
        cell: which.
        storage: holds the run.
        run: which run.
        started: the event that told of the attempt.
    """
    newest = newest_attempt(storage, run)
    if newest is None:
        return [f"run {run}: expected an attempt, got none"]
    record = read_attempt(storage, run, newest)
    facts: dict[str, tuple[object, object]] = {
        "attempt.json, placement": (
            record.placement,
            cell.resumed.placement(cell.method).to_json(),
        ),
        "attempt.json, reseeded_ranks": (
            record.reseeded_ranks,
            tuple(range(cell.saved.ranks, cell.resumed.ranks)),
        ),
        "attempt.json, inexact is empty": (not record.inexact, cell.is_same),
        "training.started, exact": (started["exact"], cell.is_same),
    }
    return [
        f"{name}: expected {expected}, got {got}"
        for name, (got, expected) in facts.items()
        if got != expected
    ]


def _state(committed: Committed) -> JsonObject:
    """Return all state that is no tensor, but for the learning rate that AdamW used last.

    That follows from the step (`training/schedule`), and is set anew before each update.
    """
    state = committed.manifest.state
    groups = [
        {name: value for name, value in group.items() if name != "lr"}
        for group in state["optimizer"]["param_groups"]
    ]
    return {**state, "optimizer": {**state["optimizer"], "param_groups": groups}}


def _digests(storage: Storage, committed: Committed) -> dict[str, tuple[str, tuple[int, ...], str]]:
    """Return dtype, shape and SHA-256 of the row-major bytes of every tensor, by name."""
    reader = CheckpointReader(storage, committed)
    entries = committed.manifest.tensors
    tensors = reader.read_all(entries, threads=1)
    return {
        entry.name: (
            entry.dtype,
            entry.shape,
            hashlib.sha256(raw_bytes(tensors[entry.name])).hexdigest(),
        )
        for entry in entries
    }
