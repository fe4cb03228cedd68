"""Saving while training goes on, on a process group of its own.

Order of a save: the state is copied (the pause training feels, or, overlapped, a copy that the next
optimizer step waits for); then one save after another is written and committed in the background.
At most one is being written and one waits, staged in buffers of its own: a third waits for the
first. An error of any rank becomes a `SaveError` on all of them: at the next `check`, `save` or
`wait`, or at `close`. It is raised once, and none is swallowed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Self

import torch.distributed as dist
from torch import Tensor

from strongroom.checkpoint.manifest import Manifest
from strongroom.checkpoint.saving.process import SaveProcess
from strongroom.checkpoint.saving.series import SaveCalls, SaveOptions, SaveSeries, Saving
from strongroom.checkpoint.saving.staging import (
    BUFFER_SETS,
    Copiers,
    Copying,
    Staged,
    StagingBuffers,
)
from strongroom.checkpoint.writing.writer import SaveFacts
from strongroom.errors import FencedError, SaveError, StrongroomError
from strongroom.names import CheckpointName
from strongroom.storage.base import Storage

__all__ = ["AsyncSaver", "SaveFacts", "SaveOptions"]


@dataclass(kw_only=True, slots=True)
class _UnderWay:
    """A save that has been called for; `written` ends with it, by whatever end."""

    name: CheckpointName
    buffers: StagingBuffers
    copying: Copying
    started: float
    held: tuple[float, float | None]
    """Seconds that training was held before, and since when it is now; read by another thread."""
    copies: list[Future[None]]
    written: Future[None] = field(default_factory=Future)

    def failure(self) -> SaveError | None:
        """Return, once the copy has ended, why there is none."""
        wait_for(self.copies)
        for copy in self.copies:
            if error := copy.exception():
                return SaveError(
                    f"save of {self.name}: its copy failed: {type(error).__name__}: {error}"
                )
        return None

    def staged(self) -> Staged:
        """Return the copy once it has ended; raise SaveError if there is none."""
        if failure := self.failure():
            raise failure
        return self.copying.staged

    def pause_s(self) -> float:
        """Return for how many seconds training has been held by this save so far."""
        seconds, since = self.held
        return seconds if since is None else seconds + time.monotonic() - since

    def hold(self) -> None:
        """Training is held from now on."""
        self.held = self.pause_s(), time.monotonic()

    def let_go(self) -> None:
        """Training goes on."""
        self.held = self.pause_s(), None


class AsyncSaver:
    """Saves checkpoints of one attempt; every rank makes one, at the same point of the program.

    Make it in a thread that stays as long as it does: the writing process dies with that thread.

    Args:
        storage: where to.
        fence: called on rank 0 right before each commit; raises FencedError if a newer attempt
            owns the run (`attempts.check_fence`).
        on_commit: called on rank 0, from the saving thread, right after each commit, with the
            manifest and the seconds from the call of `save` to the commit. If it raises, the save
            counts as failed on every rank, although its checkpoint stands.
        options: the same on every rank.
        last: the checkpoint the attempt resumed from: what a first delta is compared with.
        timeout_s: how long ranks that are done wait for the slowest one's upload.
    """

    def __init__(  # noqa: PLR0913 -- what an attempt's saves have in common
        self,
        storage: Storage,
        *,
        fence: Callable[[], None],
        on_commit: Callable[[Manifest, float], None],
        options: SaveOptions = SaveOptions(),  # noqa: B008 -- frozen
        last: Manifest | None = None,
        timeout_s: float = 4 * 3600.0,
    ) -> None:
        self._fence = fence
        self._on_commit = on_commit
        self._is_overlapped = options.staging == "overlap"
        # Of its own: collectives of training and saving on one group abort the process.
        self._group = (
            dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
            if dist.is_initialized()
            else None
        )
        self._saving: Saving = (
            SaveProcess(storage, group=self._group, options=options, last=last, timeout_s=timeout_s)
            if options.writer == "process"
            else SaveSeries(storage, group=self._group, options=options, last=last)
        )
        self._buffers: list[StagingBuffers] = []
        self._copiers = Copiers()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="save")
        self._under_way: deque[_UnderWay] = deque()

    def save(self, state: Mapping[str, Tensor], facts: SaveFacts) -> None:
        """Copy `state`, or begin to, and return; writing and committing go on in the background.

        Collective: every rank calls it with its part of the state, in the same order of saves.
        With `staging="copy"`, what happens to `state` afterwards does not reach the checkpoint.
        With `staging="overlap"` that is so once `wait_staged` has returned; until then the state
        must stay as it is. Where one save is being written and one waits, it waits for the first.

        Args:
            state: flat, by name: plain tensors (equal on all ranks that hold the name) or DTensors.
            facts: rank 0's are recorded.

        Raises:
            InputError: something in the state is no tensor.
            SaveError: a save before this one failed, or the copy did.
            FencedError: a save before this one was stopped by the fence.
        """
        started = time.monotonic()
        self.wait_staged()
        self.check()
        buffers = self._free_buffers()
        copying = buffers.begin(state)
        save = _UnderWay(
            name=facts.name,
            buffers=buffers,
            copying=copying,
            copies=self._copiers.start(copying),
            started=started,
            held=(0.0, started),
        )
        if not self._is_overlapped:
            wait_for(save.copies)
        save.written = self._thread.submit(self._saving.write, facts, self._calls(save))
        self._under_way.append(save)
        save.let_go()
        if not self._is_overlapped:
            self.wait_staged()  # which is over; raises if the copy failed

    def wait_staged(self) -> None:
        """Return when the state may change: call it before each optimizer step.

        Raises:
            SaveError: the copy failed, or a save before it.
        """
        newest = self._under_way[-1] if self._under_way else None
        if newest is None:
            return
        newest.hold()
        failure = newest.failure()
        newest.let_go()
        if failure is not None:
            self.wait()  # raises: by then every rank knows why

    def is_busy(self) -> bool:
        """Return whether a save called now would have to wait for another one's end."""
        return sum(not save.written.done() for save in self._under_way) >= BUFFER_SETS

    def check(self) -> None:
        """Return at once; call it at every step, so that a failed save stops the run.

        Raises:
            SaveError: a save failed, or none can succeed any more.
            FencedError: a newer attempt owns the run.
        """
        self._take_ended()
        if not self._under_way:
            self._saving.check()

    def wait(self) -> None:
        """Return when nothing is under way.

        Raises:
            SaveError: a save that was under way failed.
            FencedError: a newer attempt owns the run.
        """
        wait_for([save.written for save in self._under_way])
        self._take_ended()

    def close(self) -> None:
        """Wait for the saves under way and give back threads, process and process group.

        Raises:
            SaveError: a save that was under way failed.
            FencedError: a newer attempt owns the run.
        """
        try:
            self.wait()
        finally:
            self._copiers.close()
            self._thread.shutdown()
            self._saving.close()
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

    def _free_buffers(self) -> StagingBuffers:
        """Return buffers that no save reads; the second set is made when it is first needed."""
        while True:
            taken = {id(save.buffers) for save in self._under_way}
            for buffers in self._buffers:
                if id(buffers) not in taken:
                    return buffers
            number = len(self._buffers)
            if number < BUFFER_SETS:
                self._buffers.append(StagingBuffers(number, self._saving.allocate(number)))
                continue
            wait_for([self._under_way[0].written])
            self._take_ended()

    def _take_ended(self) -> None:
        """Forget the saves that have ended; raise what those that failed ended with."""
        errors = []
        while self._under_way and self._under_way[0].written.done():
            error = self._under_way.popleft().written.exception()
            if error is not None:
                errors.append(error)
        if errors:
            raise _one_of(errors)

    def _calls(self, save: _UnderWay) -> SaveCalls:
        return SaveCalls(
            staged=save.staged,
            pause_s=save.pause_s,
            fence=self._fence,
            committed=lambda manifest: self._on_commit(manifest, time.monotonic() - save.started),
        )


def _one_of(errors: list[BaseException]) -> BaseException:
    """Return one error that says what all of them say."""
    for error in errors:
        if isinstance(error, FencedError):
            return error  # nothing else matters to an attempt that was overtaken
    first, *others = errors
    if not others or not isinstance(first, StrongroomError):
        return first
    told = SaveError("; and ".join(map(str, errors)))
    told.__cause__ = first
    return told
