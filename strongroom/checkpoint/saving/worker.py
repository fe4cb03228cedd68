"""The process that writes the saves of one rank: what `saving.process` starts.

`python -m strongroom.checkpoint.saving.worker PARENT SOCKET MEMORY MEMORY`: the parent's process id
and the descriptors it hands over. It writes until its parent closes the socket or ends.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.planner import WriteItem

from strongroom.checkpoint.saving.process import (
    Answer,
    Ended,
    Meeting,
    Question,
    SharedMemory,
    Start,
    Write,
)
from strongroom.checkpoint.saving.series import SaveCalls, SaveSeries
from strongroom.checkpoint.saving.staging import Staged, num_bytes_of, tensors_in
from strongroom.errors import SaveError, StrongroomError
from strongroom.parent import die_with_parent
from strongroom.storage.store import open_storage

JOIN_S = 300.0
"""Seconds the writers of all ranks wait for each other before the first save."""


def main(arguments: Sequence[str]) -> int:
    """Write until there is nothing more to write; return the exit code."""
    parent, channel, *memories = map(int, arguments)
    die_with_parent(parent)
    worker = _Worker(Connection(channel), [SharedMemory(memory) for memory in memories])
    try:
        return worker.run()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return 0  # the parent is done, or gone


class _Worker:
    """Takes orders from the parent, one at a time."""

    def __init__(self, connection: Connection, memories: list[SharedMemory]) -> None:
        self._connection = connection
        self._memories = memories
        self._items: dict[int, tuple[WriteItem, ...]] = {}

    def run(self) -> int:
        start: Start = self._connection.recv()
        try:
            series = _series(start)
        except Exception as error:  # noqa: BLE001 -- the first save fails of it, on this rank
            self._end(error)
            return 1
        while not series.is_broken:
            order: Write = self._connection.recv()
            try:
                series.write(order.facts, self._calls(order))
            except StrongroomError as error:
                self._end(error)
            else:
                self._end(None)
        return 1  # its connections close, and ranks that wait for this one hear of it

    def _calls(self, order: Write) -> SaveCalls:
        return SaveCalls(
            staged=partial(self._staged, order),
            pause_s=lambda: float(self._ask("pause_s")),
            fence=lambda: self._ask("fence"),
            committed=lambda manifest: self._ask("committed", manifest),
        )

    def _staged(self, order: Write) -> Staged:
        if order.failure is not None:
            raise order.failure
        if order.items is not None:
            self._items[order.buffers] = order.items
        items = self._items[order.buffers]
        memory = self._memories[order.buffers].tensor(num_bytes_of(items))
        return Staged(buffers=order.buffers, items=items, tensors=tensors_in(memory, items))

    def _ask(self, name: str, *arguments: Any) -> Any:  # noqa: ANN401 -- whatever is asked for
        self._connection.send(Question(name=name, arguments=arguments))
        answer: Answer = self._connection.recv()
        if answer.error is not None:
            raise answer.error
        return answer.value

    def _end(self, error: Exception | None) -> None:
        """Tell how a save ended, by an error that can be read in another process."""
        if error is not None and not isinstance(error, StrongroomError):
            error = SaveError(f"the process that writes: {type(error).__name__}: {error}")
        self._connection.send(Ended(error=error))


def _series(start: Start) -> SaveSeries:
    rank = 0 if start.meeting is None else start.meeting.rank
    logging.basicConfig(
        level=start.log_level,
        format=f"%(asctime)s rank {rank} writer %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    return SaveSeries(
        open_storage(start.storage_url),
        group=None if start.meeting is None else _joined(start.meeting, start.timeout_s),
        options=start.options,
        last=start.last,
    )


def _joined(meeting: Meeting, timeout_s: float) -> dist.ProcessGroup | None:
    """Return the group of the writers of all ranks."""
    store = dist.TCPStore(  # type: ignore[attr-defined]
        meeting.host, meeting.port, is_master=False, timeout=timedelta(seconds=JOIN_S)
    )
    # Met here first: gloo itself would wait for one that never comes as long as for an upload.
    store.set(f"here/{meeting.rank}", "")
    everyone = [f"here/{rank}" for rank in range(meeting.world_size)]
    store.wait(everyone, timedelta(seconds=JOIN_S))
    dist.init_process_group(
        "gloo",
        store=store,
        rank=meeting.rank,
        world_size=meeting.world_size,
        timeout=timedelta(seconds=timeout_s),
    )
    return dist.group.WORLD


if __name__ == "__main__":
    code = main(sys.argv[1:])
    # Nothing is left to do. Python's own end can abort here: the threads of a group that lost a
    # rank may still run when what they work with is taken down.
    logging.shutdown()
    os._exit(code)
