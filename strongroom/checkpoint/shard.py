"""The first line of a shard file: which save of which checkpoint it belongs to.

A shard is `__<rank>_<n>.distcp`: this line, padded to `ALIGNMENT`, then one container a chunk, in
version 2 of the manifest without a gap. Stock readers of `torch.distributed.checkpoint` go by
`.metadata` straight to the containers and never see the line. This module never imports torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from strongroom import canonical
from strongroom.names import CheckpointName

FORMAT = "strongroom.shard/1"
ALIGNMENT = 64
"""Bytes; the header takes a multiple of it."""
METADATA_FILE = ".metadata"
"""The index of stock readers, a pickle: written and hashed, never opened here."""
SHARD_NAME = re.compile(r"__(0|[1-9][0-9]{0,8})_(0|[1-9][0-9]{0,8})\.distcp")
"""Groups: the rank, and the number among the rank's shards, from 0."""


def shard_name(rank: int, index: int = 0) -> str:
    """`__<rank>_<index>.distcp`, the name stock writers use."""
    return f"__{rank}_{index}.distcp"


def padding(position: int) -> bytes:
    """Return the zero bytes that lead from `position` to the next multiple of `ALIGNMENT`."""
    return bytes(-position % ALIGNMENT)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardHeader:
    """What every shard says of itself; `save_id` differs for any two saves."""

    name: CheckpointName
    save_id: str
    rank: int

    def to_bytes(self) -> bytes:
        """Return the line with its padding."""
        line = canonical.dumps(
            {
                "format": FORMAT,
                "run": str(self.name.run),
                "attempt": self.name.attempt.number,
                "step": self.name.step.number,
                "save_id": self.save_id,
                "rank": self.rank,
            }
        )
        line += b"\n"
        return line + padding(len(line))
