"""How the work of one attempt is spread; an attempt's own, no part of what the run is.

Law: the rows of an optimizer step, and their order, are the same under every placement that fits.
Never imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

from strongroom.canonical import JsonObject
from strongroom.parsing import to_json

StrategyName = Literal["fsdp2", "zero3"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """Who computes what.

    Attributes:
        replicas: groups of ranks that each hold the whole model, sharded (HSDP); fsdp2 alone.
        micro_batch_rows: most rows of one pass on one rank; None: all of a rank's part.
    """

    strategy: StrategyName
    world_size: int
    replicas: int = 1
    threads_per_rank: int = 1
    micro_batch_rows: int | None = None

    def to_json(self) -> JsonObject:
        """Return it as an attempt's record keeps it."""
        return to_json(self)

    def micro_batches(self, batch_rows: int) -> int:
        """Return into how many passes a rank's part of `batch_rows` is divided."""
        rank_rows = batch_rows // self.world_size
        return -(-rank_rows // (self.micro_batch_rows or rank_rows))

    def with_world_size(self, world_size: int) -> Placement:
        """Return it on another number of ranks; replicas are kept where they divide it."""
        replicas = self.replicas if world_size % self.replicas == 0 else 1
        return replace(self, world_size=world_size, replicas=replicas)


PLACEMENT_FIELDS = tuple(item.name for item in fields(Placement))


def placement_faults(placement: Placement, batch_rows: int) -> list[str]:
    """Say what keeps steps of `batch_rows` rows from being spread so; nothing if they can be."""
    faults = []
    if batch_rows % placement.world_size:
        faults.append(
            f"batch_rows: must be a multiple of world_size ({placement.world_size}), "
            f"got {batch_rows}"
        )
    if placement.replicas > 1 and placement.strategy != "fsdp2":
        faults.append(
            f"replicas: must be 1 with strategy {placement.strategy}, got {placement.replicas}"
        )
    if placement.world_size % placement.replicas:
        faults.append(
            f"replicas: must divide world_size ({placement.world_size}), got {placement.replicas}"
        )
    return faults
