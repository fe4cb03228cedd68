"""Saving while training goes on: one save in flight, on a process group of its own.

Order of `save`: wait for the save before, copy the state (the pause training feels), return; a
thread then writes and commits. An error of any rank becomes a `SaveError` on all of them: at the
next `check`, `save` or `wait`, or at `close`. It is raised once.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import Self

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

from strongroom.checkpoint.manifest import Manifest
from strongroom.checkpoint.staging import StagingBuffers
from strongroom.checkpoint.writer import CheckpointWriter, SaveFacts
from strongroom.errors import FencedError, SaveError
from strongroom.names import CheckpointName
from strongroom.storage.base import Storage

__all__ = ["AsyncSaver", "SaveFacts"]

logger = logging.getLogger(__name__)

# Saving from one process is what a run on one rank is meant to do.
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable")


class AsyncSaver:
    """Saves checkpoints of one attempt; every rank makes one, at the same point of the program.

    Args:
        storage: where to.
        fence: called on rank 0 right before each commit; raises FencedError if a newer attempt
            owns the run (`run_record.check_fence`).
        on_commit: called on rank 0, from the saving thread, right after each commit, with the
            manifest and the seconds from the call of `save` to the commit. If it raises, the save
            counts as failed on every rank, although its checkpoint stands.
        timeout_s: how long ranks that are done wait for the slowest one's upload.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        fence: Callable[[], None],
        on_commit: Callable[[Manifest, float], None],
        timeout_s: float = 4 * 3600.0,
    ) -> None:
        self._storage = storage
        self._fence = fence
        self._on_commit = on_commit
        self._buffers = StagingBuffers()
        # Of its own: collectives of training and saving on one group abort the process.
        self._group = (
            dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
            if dist.is_initialized()
            else None
        )
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="save")
        self._in_flight: tuple[CheckpointName, Future[None]] | None = None

    def save(self, state: Mapping[str, Tensor], facts: SaveFacts) -> None:
        """Copy `state` and return; writing and committing go on in a thread.

        Collective: every rank calls it with its part of the state, in the same order of saves.
        What happens to `state` afterwards does not reach the checkpoint.

        Args:
            state: flat, by name: plain tensors (equal on all ranks that hold the name) or DTensors.
            facts: rank 0's are recorded.

        Raises:
            SaveError: the save before this one failed.
            FencedError: the save before this one was stopped by the fence.
        """
        started = time.monotonic()
        self.wait()
        staged = self._buffers.copy(state)
        pause_s = time.monotonic() - started
        facts = replace(facts, metrics={**facts.metrics, "pause_s": round(pause_s, 6)})
        writer = CheckpointWriter(
            self._storage,
            facts,
            fence=self._fence,
            committed=lambda manifest: self._on_commit(manifest, time.monotonic() - started),
        )
        self._in_flight = facts.name, self._thread.submit(self._write, staged, writer)

    def check(self) -> None:
        """Return at once; call it at every step, so that a failed save stops the run.

        Raises:
            SaveError: a save failed.
            FencedError: a newer attempt owns the run.
        """
        if self._in_flight is not None and self._in_flight[1].done():
            self.wait()

    def wait(self) -> None:
        """Return when nothing is in flight.

        Raises:
            SaveError: the save that was in flight failed.
            FencedError: a newer attempt owns the run.
        """
        if self._in_flight is None:
            return
        name, future = self._in_flight
        try:
            future.result()
        except CheckpointException as failure:
            raise _translated(name, failure) from failure
        except Exception as error:  # such as a rank that died in the middle of a collective
            raise SaveError(
                f"save of {name}: {type(error).__name__}: {error}; "
                "training stops, and resumes from the newest checkpoint that verifies"
            ) from error
        finally:
            self._in_flight = None

    def close(self) -> None:
        """Wait for the save in flight and give back thread and process group.

        Raises:
            SaveError: the save that was in flight failed.
            FencedError: a newer attempt owns the run.
        """
        try:
            self.wait()
        finally:
            self._thread.shutdown()
            if self._group is not None:
                dist.destroy_process_group(self._group)
                self._group = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _write(self, staged: dict[str, Tensor], writer: CheckpointWriter) -> None:
        save_distributed(
            staged, storage_writer=writer, process_group=self._group, no_dist=self._group is None
        )


def _translated(name: CheckpointName, failure: CheckpointException) -> SaveError | FencedError:
    """Return what training is told; DCP's own exception is no `Exception` and names no file."""
    ranks = sorted(failure.failures)
    first, _ = failure.failures[ranks[0]]
    if isinstance(first, FencedError):
        return first
    return SaveError(
        f"save of {name}: failed on rank(s) {', '.join(map(str, ranks))}: "
        f"{type(first).__name__}: {first}; training stops, and resumes from the newest checkpoint "
        "that verifies"
    )
