"""One rank of a training, which notes where it stands and whose store and data are slow.

`python -m benchmarks.reliability.marked_rank FOLDER SLOW_S STEP_S ARGUMENTS`, the last being those
of `python -m strongroom.training`, which is what runs here. Around it functions are wrapped: each
notes what it is about to do, and what takes microseconds on a local disk takes `SLOW_S` seconds, in
the middle of it, so that a kill can meet it. What is computed and written is the same.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from unittest.mock import patch

from benchmarks.reliability.marks import Marks, Phase
from strongroom.parent import die_with_parent
from strongroom.storage.base import Part
from strongroom.storage.local import LocalStorage

if TYPE_CHECKING:  # torch takes seconds to import, and a kill may come before
    from strongroom.checkpoint.saving.series import SaveCalls, SaveSeries
    from strongroom.checkpoint.saving.staging import Copying
    from strongroom.checkpoint.writing.writer import SaveFacts
    from strongroom.data.cursor import Cursor
    from strongroom.training.batches import TrainingRows
    from strongroom.training.loop import End, Loop
    from strongroom.training.progress import Progress

FILES: dict[str, tuple[Phase, Phase]] = {
    ".distcp": ("shards", "agreeing"),
    "/.metadata": ("index", "agreeing"),
    "/manifest.sha256": ("manifest", "manifest"),
    "/manifest.json": ("manifest", "ledger"),
}
"""What is written while a file of that name is, and what comes once it stands."""


class SlowWriter:
    """A writer that waits where its object is half there: written, and not yet in its place.

    Args:
        writer: an `ObjectWriter` or a `PartWriter`.
        slow_s: how long it waits.
        stands: called once the object is in its place.
    """

    def __init__(self, writer: Any, slow_s: float, stands: Callable[[], None]) -> None:  # noqa: ANN401 -- of two kinds
        self._writer = writer
        self._slow_s = slow_s
        self._stands = stands

    def write(self, data: bytes | memoryview) -> None:
        """Write, then wait."""
        self._writer.write(data)
        time.sleep(self._slow_s)

    def put(self, part: Part) -> None:
        """Write a part, then wait."""
        self._writer.put(part)
        time.sleep(self._slow_s)

    def __enter__(self) -> Self:
        self._writer.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._writer.__exit__(kind, error, trace)
        self._stands()
        time.sleep(self._slow_s)


@contextmanager
def _slow_store(marks: Marks, slow_s: float) -> Iterator[None]:
    """Note every file of a save, and hold its writing up."""
    from strongroom.checkpoint.saving.series import SaveSeries

    def slow(writer: Any, key: str) -> Any:  # noqa: ANN401 -- as the writer
        phases = [phases for end, phases in FILES.items() if key.endswith(end)]
        if not phases and threading.current_thread().name.startswith("save"):
            phases = [("ledger", "ledger")]
        if not phases:
            return writer
        (during, after), *_ = phases
        marks.at(during)
        return SlowWriter(writer, slow_s, stands=lambda: marks.at(after))

    create_stream, create_parts = LocalStorage.create_stream, LocalStorage.create_parts
    write = SaveSeries.write

    def slow_stream(self: LocalStorage, key: str) -> Any:  # noqa: ANN401 -- as above
        return slow(create_stream(self, key), key)

    def slow_parts(self: LocalStorage, key: str, *, num_bytes: int) -> Any:  # noqa: ANN401 -- as above
        return slow(create_parts(self, key, num_bytes=num_bytes), key)

    def marked_write(self: SaveSeries, facts: SaveFacts, calls: SaveCalls) -> None:
        try:
            write(self, facts, calls)
        finally:
            marks.saved()

    with (
        patch.object(LocalStorage, "create_stream", slow_stream),
        patch.object(LocalStorage, "create_parts", slow_parts),
        patch.object(SaveSeries, "write", marked_write),
    ):
        yield


@contextmanager
def _slow_copies(marks: Marks, slow_s: float) -> Iterator[None]:
    """Note every copy of the state, and hold it up half way."""
    from strongroom.checkpoint.saving.staging import Copying

    parts = Copying.parts

    def part(first: Callable[[], None], second: Callable[[], None]) -> None:
        first()
        time.sleep(slow_s)
        second()
        marks.at("agreeing")

    def slow_copy(self: Copying, count: int) -> list[Callable[[], None]]:
        marks.at("staging")
        halves = parts(self, 2 * count)
        return [partial(part, *pair) for pair in zip(halves[::2], halves[1::2], strict=True)]

    with patch.object(Copying, "parts", slow_copy):
        yield


@contextmanager
def _slow_steps(marks: Marks, step_s: float) -> Iterator[None]:
    """Note restoring and training, and hold every step up before its rows are there."""
    from strongroom.training import run
    from strongroom.training.batches import TrainingRows
    from strongroom.training.loop import Loop
    from strongroom.training.resume import restore

    train, take = Loop.run, TrainingRows.take

    def marked_restore(*arguments: Any, **named: Any) -> Progress:  # noqa: ANN401 -- passed on
        marks.at("restoring")
        return restore(*arguments, **named)

    def marked_training(self: Loop) -> End:
        marks.at("training")
        return train(self)

    def slow_take(self: TrainingRows, cursor: Cursor, count: int) -> Any:  # noqa: ANN401 -- passed on
        time.sleep(step_s)
        return take(self, cursor, count)

    with (
        patch.object(run, "restore", marked_restore),
        patch.object(Loop, "run", marked_training),
        patch.object(TrainingRows, "take", slow_take),
    ):
        yield


def main(arguments: list[str]) -> int:
    """Train, and return the exit code."""
    die_with_parent()
    folder, slow_s, step_s, *of_training = arguments
    marks = Marks(Path(folder), int(os.environ["RANK"]))
    marks.at("starting")
    from strongroom.training import __main__ as training

    with (
        _slow_store(marks, float(slow_s)),
        _slow_copies(marks, float(slow_s)),
        _slow_steps(marks, float(step_s)),
    ):
        return training.main(of_training)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    # As strongroom.training ends.
    logging.shutdown()
    os._exit(code)
