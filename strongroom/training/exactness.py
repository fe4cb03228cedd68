"""What may keep a run from coming out the same bit for bit, said beforehand.

A run that is stopped and goes on as it was ends in the very same state. What stands against that is
recorded: of the run itself in `run.json`, of an attempt that is spread otherwise than the one it
goes on from, or computes on something else, in `attempt.json`. Pure; never imports torch.
"""

from __future__ import annotations

from strongroom.canonical import JsonObject
from strongroom.checkpoint.attempts import AttemptRecord
from strongroom.training.config import RunConfig


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


def resume_inexactness(
    config: RunConfig, before: AttemptRecord, now: AttemptRecord
) -> tuple[str, ...]:
    """Say why an attempt may not come out as a run that was never stopped.

    That is what it changes in how the work is spread and in what computes it, and what the attempt
    it goes on from was inexact for: what was rounded otherwise stays so.

    Args:
        config: of the run.
        before: the record of the attempt that made the checkpoint to go on from.
        now: how and on what this one computes.
    """
    if not before.placement or not before.environment:
        changes = ["how the attempt before was spread, and on what, was not recorded"]
    else:
        # A package that only one of two strategies uses is no change beside that of strategy.
        both = {name: it for name, it in now.environment.items() if name in before.environment}
        changes = [
            *_of_placement(config, _changed(before.placement, now.placement)),
            *_of_environment(_changed(before.environment, both)),
        ]
    return tuple(dict.fromkeys((*before.inexact, *changes)))


def _changed(before: JsonObject, now: JsonObject) -> str:
    return ", ".join(
        f"{name} {before.get(name)!r} -> {value!r}"
        for name, value in now.items()
        if before.get(name) != value
    )


def _of_environment(told: str) -> list[str]:
    if not told:
        return []
    return [f"{told}: other kernels may round otherwise, and other code compute otherwise"]


def _of_placement(config: RunConfig, told: str) -> list[str]:
    if not told:
        return []
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
