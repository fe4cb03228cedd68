"""Run a function on several ranks of a gloo process group, each in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from strongroom.training.world import leave_world


def run_ranks(world_size: int, work: Callable[[int, Path], None], folder: Path) -> None:
    """Call `work(rank, folder)` on every rank; an error of any rank is raised here.

    `work` is a function of a module: the processes are started afresh and import it.
    """
    start_processes(  # type: ignore[no-untyped-call]
        _rank, args=(world_size, work, folder), nprocs=world_size, start_method="spawn"
    )


def _rank(rank: int, world_size: int, work: Callable[[int, Path], None], folder: Path) -> None:
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "RANK": str(rank), "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    meeting = folder / "meeting-point"  # a file, so that no port can be taken
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=world_size
    )
    try:
        work(rank, folder)
        dist.barrier()
    finally:
        leave_world()
