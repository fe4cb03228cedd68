"""The ranks of one training, and what they say to each other over gloo.

Invariant: every rank makes the same calls in the same order. A number that decides anything is
agreed on here first; no rank acts on its own clock, signal or failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.utils.deterministic

from strongroom.errors import PeerError

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """This rank's place among all, 0 to `size` - 1."""

    rank: int
    size: int

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which alone speaks to the ledger and to whoever launched it."""
        return self.rank == 0

    def total(self, *values: float) -> list[float]:
        """Return the sums of `values` over all ranks, in float64: the same on every rank."""
        sums = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(sums)
        return sums.tolist()

    def from_first(self, make: Callable[[], T]) -> T:
        """Return on every rank what `make` returns on rank 0; the value is copied by pickling.

        Raises:
            PeerError: on the other ranks, where `make` raised on rank 0; there it is raised.
        """
        said: list[Any] = [None, None]
        if not self.is_first:
            dist.broadcast_object_list(said, src=0)
            value, failure = said
            if failure is not None:
                raise PeerError(f"rank {self.rank}: rank 0 failed: {failure}")
            made: T = value
            return made
        try:
            made = make()
        except Exception as error:
            dist.broadcast_object_list([None, type(error).__name__], src=0)
            raise
        dist.broadcast_object_list([made, None], src=0)
        return made


@contextmanager
def joined_world(threads: int) -> Iterator[World]:
    """Join the ranks that torchrun started, with `threads` threads of computation in each.

    Results are repeatable: operations that are not deterministic raise.
    """
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(mode=True)
    # Filling memory that is written before it is read costs time and decides nothing.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    dist.init_process_group("gloo")
    yield World(rank=dist.get_rank(), size=dist.get_world_size())
    # Not after a failure: the other ranks may never come, and the process ends anyway.
    dist.destroy_process_group()
