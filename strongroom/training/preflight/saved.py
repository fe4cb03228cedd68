"""What a checkpoint of the run holds of what a resume needs, by its manifest alone. Pure.

Whether what it holds is whole and right is for the verification ladder to say; here it is only
asked what was left out.
"""

from __future__ import annotations

from datetime import datetime

from strongroom.checkpoint.manifest import Manifest
from strongroom.training.preflight.facts import SavedCheckpoint

_PARAMETERS = "model."
_OPTIMIZER = "optim.state."


def saved_checkpoint(
    manifest: Manifest, *, is_verified: bool, is_quarantined: bool
) -> SavedCheckpoint:
    """Return what a checkpoint holds; the ledger says the rest."""
    names = [tensor.name for tensor in manifest.tensors]
    parameters = {name.removeprefix(_PARAMETERS) for name in names if name.startswith(_PARAMETERS)}
    with_state = {
        name.removeprefix(_OPTIMIZER).rpartition(".")[0]
        for name in names
        if name.startswith(_OPTIMIZER)
    }
    optimizer = manifest.state.get("optimizer")
    return SavedCheckpoint(
        name=manifest.name.short,
        attempt=manifest.name.attempt.number,
        step=manifest.name.step.number,
        world_size=manifest.world_size,
        num_bytes=manifest.num_bytes,
        created_s=_seconds(manifest.created),
        is_verified=is_verified,
        is_quarantined=is_quarantined,
        parameters=len(parameters),
        without_optimizer=len(parameters - with_state),
        has_optimizer_settings=isinstance(optimizer, dict) and bool(optimizer.get("param_groups")),
        lacks=_lacks(manifest, names),
    )


def _seconds(time: str) -> float | None:
    try:
        return datetime.fromisoformat(time).timestamp()
    except ValueError:  # a foreign manifest may hold any text
        return None


def _lacks(manifest: Manifest, names: list[str]) -> tuple[str, ...]:
    wanted = {
        "the data cursor": "cursor",
        "the schedule's state": "scheduler",
        "the counts of steps and tokens": "counters",
    }
    lacks = [what for what, section in wanted.items() if not manifest.state.get(section)]
    with_random = {name.split(".")[1] for name in names if name.startswith("rng.")}
    if missing := manifest.world_size - len(with_random):
        lacks.append(f"the random state of {missing} of {manifest.world_size} ranks")
    return tuple(lacks)
