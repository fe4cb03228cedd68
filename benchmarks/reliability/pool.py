"""Ranks that stay: one group of processes for each number of ranks, started once.

To start a rank takes seconds, and a cell of the matrix hardly more: so all cells of a number of
ranks are trained by the same processes, one after another.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Self
from unittest.mock import patch

from benchmarks.reliability.worker import Seen, Task, serve

PATIENCE_S = 600.0
"""How long a task may take; it takes seconds."""
ENDS_WITHIN_S = 10.0
IMPORTED_BEFORE = ["torch", "transformers", "peft", "deepspeed", "strongroom.training.run"]
"""What every rank needs and takes seconds to import: done once, before they are forked."""


class Ranks:
    """One group of ranks, 0 to `size` - 1.

    Args:
        size: how many.
        folder: for the file by which they find one another.
    """

    def __init__(self, size: int, folder: Path) -> None:
        self.size = size
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(IMPORTED_BEFORE)
        self._ends: list[Connection] = []
        self._processes: list[BaseProcess] = []
        meeting = folder / f"meeting-point-of-{size}"
        with patch.dict(os.environ, {"DS_ACCELERATOR": "cpu"}):
            for rank in range(size):
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=serve, args=(rank, size, meeting, theirs), daemon=True
                )
                process.start()
                theirs.close()
                self._ends.append(ours)
                self._processes.append(process)

    def launch(self, task: Task) -> list[Seen]:
        """Have all ranks do a task, and return what each saw.

        Raises:
            RuntimeError: one failed, ended or took too long; the group is of no more use.
        """
        for end in self._ends:
            end.send(task)
        seen: dict[int, Seen] = {}
        while waiting := {end: rank for rank, end in enumerate(self._ends) if rank not in seen}:
            ready = [end for end in wait([*waiting], PATIENCE_S) if end in waiting]
            if not ready:
                raise RuntimeError(f"{self.size} rank(s) took more than {PATIENCE_S:g} s: {task}")
            seen |= {rank: self._answer(rank) for end, rank in waiting.items() if end in ready}
        return [seen[rank] for rank in range(self.size)]

    def close(self) -> None:
        """End them; those that hang too."""
        for end in self._ends:
            with suppress(BrokenPipeError):  # it ended before
                end.send(None)
            end.close()
        for process in self._processes:
            process.join(ENDS_WITHIN_S)
            process.kill()
            process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self, rank: int) -> Seen:
        try:
            answer: Seen | str = self._ends[rank].recv()
        except EOFError:
            self._processes[rank].join(ENDS_WITHIN_S)
            answer = f"it ended with {self._processes[rank].exitcode}"
        if isinstance(answer, Seen):
            return answer
        for process in self._processes:
            process.kill()  # the others may wait for it for ever
        raise RuntimeError(f"rank {rank} of {self.size} failed: {answer}")


@contextmanager
def pools(sizes: Collection[int], folder: Path) -> Iterator[dict[int, Ranks]]:
    """Start a group for each of `sizes`, and end them all in the end."""
    with ExitStack() as stack:
        yield {size: stack.enter_context(Ranks(size, folder)) for size in sizes}
