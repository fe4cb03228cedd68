"""Where everything stands in a rank's shards, decided before a byte is written.

Small containers come first and share parts; then every large one is a part by itself, so that one
digest serves both. Containers follow each other without a gap. Pure arithmetic: this module never
imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from strongroom.storage.base import PARTS_MAX

SHARD_BYTES = 32 * 2**30
"""Most bytes of a shard, unless one chunk has more; a rank with more bytes writes several."""
PART_BYTES = 2**20
"""Least bytes of a part, even where the storage would take less: each costs a call and a thread's
turn."""


class Place(NamedTuple):
    """Where one container goes: its number among those given, and its offset in the file."""

    container: int
    offset: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedPart:
    """Consecutive bytes of a shard that are handed to the storage at once.

    Attributes:
        number: from 1; the first part begins with the header.
    """

    number: int
    offset: int
    num_bytes: int
    places: tuple[Place, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedShard:
    """One file of a rank."""

    num_bytes: int
    parts: tuple[PlannedPart, ...]


class _OpenShard:
    """A shard that still grows; its last part is closed when it holds `part_bytes`."""

    def __init__(self, header_bytes: int) -> None:
        self.num_bytes = header_bytes
        self.places: list[list[Place]] = [[]]
        self._starts = [0]

    @property
    def is_empty(self) -> bool:
        return self.places == [[]]

    def last_part_bytes(self) -> int:
        return self.num_bytes - self._starts[-1]

    def add(self, container: int, num_bytes: int) -> None:
        self.places[-1].append(Place(container, self.num_bytes))
        self.num_bytes += num_bytes

    def close_part(self) -> None:
        self._starts.append(self.num_bytes)
        self.places.append([])

    def planned(self) -> PlannedShard:
        ends = [*self._starts[1:], self.num_bytes]
        parts = tuple(
            PlannedPart(number=number, offset=start, num_bytes=end - start, places=tuple(places))
            for number, (start, end, places) in enumerate(
                zip(self._starts, ends, self.places, strict=True), start=1
            )
        )
        return PlannedShard(num_bytes=self.num_bytes, parts=parts)


def plan_shards(
    sizes: Sequence[int],
    *,
    header_bytes: int,
    part_bytes: int,
    shard_bytes: int,
    parts_max: int = PARTS_MAX,
) -> list[PlannedShard]:
    """Return the shards of one rank, at least one.

    Args:
        sizes: bytes of each container.
        header_bytes: bytes of the header every shard begins with.
        part_bytes: least bytes of every part but a shard's last.
        shard_bytes: most bytes of a shard, unless it holds a single container.
        parts_max: most parts of a shard.
    """
    shards = [_OpenShard(header_bytes)]
    small_first = sorted(range(len(sizes)), key=lambda index: sizes[index] >= part_bytes)
    for index in small_first:
        shard = shards[-1]
        part_is_full = shard.last_part_bytes() >= part_bytes
        is_full = shard.num_bytes + sizes[index] > shard_bytes or (
            part_is_full and len(shard.places) == parts_max
        )
        if is_full and not shard.is_empty:
            shards.append(_OpenShard(header_bytes))
        elif part_is_full:
            shard.close_part()
        shards[-1].add(index, sizes[index])
    return [shard.planned() for shard in shards]
