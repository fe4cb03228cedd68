"""The saves of one attempt, one after another, in whichever process writes them.

Invariant: all ranks make the same saves in the same order. What stops one save on one rank stops it
on all, and the next may succeed; but once the ranks could not hear each other any more, each later
save fails at once, rather than wait for an answer to a question that nobody heard.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed
from torch.distributed.checkpoint.storage import WriteResult

from strongroom.checkpoint.delta import delta_base
from strongroom.checkpoint.manifest import Manifest
from strongroom.checkpoint.saving.staged_planner import StagedPlanner
from strongroom.checkpoint.saving.staging import Allocate, Staged, private_memory
from strongroom.checkpoint.writing.writer import CheckpointWriter, SaveFacts
from strongroom.errors import FencedError, SaveError
from strongroom.names import CheckpointName
from strongroom.storage.base import Storage

RESUME = "training stops, and resumes from the newest checkpoint that verifies"

# Saving from one process is what a run on one rank is meant to do.
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable")


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveOptions:
    """How checkpoints are saved; the same on every rank.

    Attributes:
        staging: `copy`: a save returns when it has its own copy of the state. `overlap`: it returns
            at once, and the state may not change before `wait_staged` has returned.
        writer: `thread`: a thread of the training process writes. `process`: one process beside
            each rank does, so that writing and training never share an interpreter.
        full_every: every so many-th checkpoint is full, those between are deltas; 1 for full ones
            alone.
        delta_min_share: a full checkpoint follows a delta that could borrow less than this share
            of its bytes.
        threads: how many write one shard.
    """

    staging: Literal["copy", "overlap"] = "copy"
    writer: Literal["thread", "process"] = "thread"
    full_every: int = 1
    delta_min_share: float = 0.1
    threads: int = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveCalls:
    """What a save asks of the process that trains; all but `staged` on rank 0 alone.

    Attributes:
        staged: wait for the copy and return it; raises what taking it raised.
        pause_s: seconds that training has been held by this save so far.
        fence: called right before the commit; raises FencedError to stop it.
        committed: called right after the commit.
    """

    staged: Callable[[], Staged]
    pause_s: Callable[[], float]
    fence: Callable[[], None]
    committed: Callable[[Manifest], None]


class Saving(Protocol):
    """Who writes: this process, or one beside it."""

    def allocate(self, buffers: int) -> Allocate:
        """Return where the memory of a set of buffers, 0 or 1, comes from."""
        ...

    def write(self, facts: SaveFacts, calls: SaveCalls) -> None:
        """Write and commit one checkpoint; called from one thread, one save at a time.

        Raises:
            SaveError: it was not committed, or not announced; on every rank alike.
            FencedError: a newer attempt owns the run.
        """
        ...

    def check(self) -> None:
        """Raise SaveError if no save can succeed any more, though none is under way."""
        ...

    def close(self) -> None:
        """Give back what it holds; nothing is under way."""
        ...


class SaveSeries:
    """Writes in this process.

    Args:
        storage: where to.
        group: of the ranks, for the saves alone; None where there is one rank.
        options: the same on every rank.
        last: what the first delta is compared with: the checkpoint the attempt resumed from.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        group: dist.ProcessGroup | None,
        options: SaveOptions,
        last: Manifest | None,
    ) -> None:
        self._storage = storage
        self._group = group
        self._options = options
        self._last = last
        self._is_broken = False

    @property
    def is_broken(self) -> bool:
        """Whether the ranks cannot hear each other any more."""
        return self._is_broken

    def allocate(self, buffers: int) -> Allocate:  # noqa: ARG002 -- all alike here
        """Return where the memory of a set of buffers comes from."""
        return private_memory

    def write(self, facts: SaveFacts, calls: SaveCalls) -> None:
        """Write and commit one checkpoint; see `Saving.write`."""
        if self._is_broken:
            raise SaveError(f"save of {facts.name}: the ranks lost each other in one before it")
        try:
            save_distributed(
                {},
                storage_writer=self._writer(facts, calls),
                planner=StagedPlanner(calls.staged),
                process_group=self._group,
                no_dist=self._group is None,
            )
        except CheckpointException as failure:
            raise _translated(facts.name, failure) from failure
        except Exception as error:  # such as a rank that died in the middle of a collective
            self._is_broken = True
            raise SaveError(
                f"save of {facts.name}: {type(error).__name__}: {error}; {RESUME}"
            ) from error

    def check(self) -> None:
        """Nothing can happen to a writer in this process while nothing is under way."""

    def close(self) -> None:
        """Nothing is held; the group is its maker's."""

    def _writer(self, facts: SaveFacts, calls: SaveCalls) -> CheckpointWriter:
        def committed(manifest: Manifest) -> None:
            self._last = manifest  # it stands, whether or not it can be announced
            calls.committed(manifest)

        options = self._options
        return _Writer(
            self._storage,
            facts,
            replace(calls, committed=committed),
            base=delta_base(
                self._last, full_every=options.full_every, min_share=options.delta_min_share
            ),
            threads=options.threads,
        )


class _Writer(CheckpointWriter):
    """Adds to the metrics what is known only by the time of the commit."""

    def __init__(
        self,
        storage: Storage,
        facts: SaveFacts,
        calls: SaveCalls,
        *,
        base: Manifest | None,
        threads: int,
    ) -> None:
        self._metrics = dict(facts.metrics)
        self._pause_s = calls.pause_s
        super().__init__(
            storage,
            replace(facts, metrics=self._metrics),
            fence=calls.fence,
            committed=calls.committed,
            base=base,
            threads=threads,
        )

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Commit; see `CheckpointWriter.finish`."""
        self._metrics["pause_s"] = round(self._pause_s(), 6)
        super().finish(metadata, results)


def _translated(name: CheckpointName, failure: CheckpointException) -> SaveError | FencedError:
    """Return what training is told; DCP's own exception is no `Exception` and names no file."""
    ranks = sorted(failure.failures)
    first, _ = failure.failures[ranks[0]]
    if isinstance(first, FencedError):
        return first
    return SaveError(
        f"save of {name}: failed on rank(s) {', '.join(map(str, ranks))}: "
        f"{type(first).__name__}: {first}; {RESUME}"
    )
