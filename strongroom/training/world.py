"""The ranks of one training, and what they say to each other over gloo.

Invariant: every rank makes the same calls in the same order. A number that decides anything is
agreed on here first; no rank acts on its own clock, signal or failure.
"""

from __future__ import annotations

import os
import sys
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
    """This rank's place among all, 0 to `size` - 1, and what it computes on."""

    rank: int
    size: int
    device: torch.device = torch.device("cpu")  # noqa: RUF009 -- it cannot be changed

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
    device = _device()
    is_joined = dist.is_initialized()  # by whoever has several trainings in one process
    if not is_joined:
        # Numbers that are agreed on lie in the memory of the host, and so go over gloo everywhere.
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    yield World(rank=dist.get_rank(), size=dist.get_world_size(), device=device)
    # Not after a failure: the other ranks may never come, and the process ends anyway.
    if not is_joined:
        leave_world()


def leave_world() -> None:
    """Give the process group back, and have DeepSpeed, where it was used, forget it too."""
    if (deepspeed := sys.modules.get("deepspeed")) is not None:
        deepspeed.comm.destroy_process_group()  # it keeps groups of its own
    else:
        dist.destroy_process_group()


def _device() -> torch.device:
    """Return what this rank computes on: an accelerator of its own, or the processor."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    return torch.device("cuda")
