"""What may keep a run from coming out the same bit for bit, said beforehand.

A run that is stopped and goes on as it was ends in the very same state. What stands against that is
recorded: of the run itself in `run.json`, of an attempt that is spread otherwise than the one it
goes on from in `attempt.json`. Pure; never imports torch.
"""

from __future__ import annotations

from strongroom.checkpoint.attempts import AttemptRecord
from strongroom.training.config import RunConfig
from strongroom.training.placement import Placement


def run_inexactness(config: RunConfig) -> tuple[str, ...]:
    """Say what may make two launches of the same run differ, spread as they may be alike."""
    reasons = []
    if config.train.fsdp2.compile_layers:
        reasons.append(
            "train.fsdp2.compile_layers: kernels are compiled anew at each launch, and another "
            "processor or compiler may have them add in another order"
        )
    if config.train.fsdp2.float8 == "on":
        reasons.append(
            "train.fsdp2.float8: how products are added up is the hardware's own business"
        )
    return tuple(reasons)


def resume_inexactness(config: RunConfig, before: AttemptRecord, now: Placement) -> tuple[str, ...]:
    """Say why an attempt may not come out as a run that was never stopped.

    That is what it changes in how the work is spread, and what the attempt it goes on from was
    inexact for: what was rounded otherwise stays so.

    Args:
        config: of the run.
        before: the record of the attempt that made the checkpoint to go on from.
        now: how this one is spread.
    """
    return tuple(dict.fromkeys((*before.inexact, *_changes(config, before, now))))


def _changes(config: RunConfig, before: AttemptRecord, now: Placement) -> list[str]:
    if not before.placement:
        return ["how the attempt before was spread was not recorded"]
    changed = [
        f"{name} {before.placement.get(name)!r} -> {value!r}"
        for name, value in now.to_json().items()
        if before.placement.get(name) != value
    ]
    if not changed:
        return []
    told = ", ".join(changed)
    reasons = [f"{told}: sums are rounded in another order, in float32 by about 1e-6 of the loss"]
    if config.train.compute_dtype is not None or config.model.dtype != "float32":
        reasons.append(f"{told}: what is computed in bfloat16 is rounded by up to 1e-2")
    # Masks are drawn rank by rank, and pass by pass.
    if config.adapter.method == "lora" and config.adapter.dropout > 0.0:
        reasons.append(f"{told}: adapter.dropout draws other masks")
    return reasons


def reseeded_ranks(saved_ranks: int, ranks: int) -> tuple[int, ...]:
    """Return the ranks whose random state a checkpoint of `saved_ranks` does not hold."""
    return tuple(range(saved_ranks, ranks))
