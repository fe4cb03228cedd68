"""Rows on disk: a curated file read row by row, as the rows are needed.

Memory: 8 bytes a row, for where it begins. Opening reads the file through once; a row is judged
when it is asked for, exactly as `read_curated` judges it, its id included. Asked for in the order
of a windowed cursor, rows lie near each other for as long as a window lasts.
"""

from __future__ import annotations

import os
import weakref
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import overload

from strongroom.data.rows import GZIP, PARQUET, UTF8_MARK, Row, curated_row
from strongroom.errors import DataError

_READ_BYTES = 1 << 20


class RowsOnDisk(Sequence[Row]):
    """The rows of a curated file. Any number of processes may hold the same file open."""

    def __init__(self, path: Path) -> None:
        """Find out where each row begins.

        Args:
            path: JSON Lines, neither compressed nor of any other format.

        Raises:
            DataError: the file is missing, unreadable or not of that format.
        """
        self._path = path
        try:
            # Reads name their place, so that threads and forked processes do not share one.
            self._descriptor = os.open(path, os.O_RDONLY)
            weakref.finalize(self, os.close, self._descriptor)
            self._offsets = self._found_offsets()
        except OSError as error:
            raise _unreadable(path, error) from error

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        """Read a row, or several.

        Raises:
            DataError: a row is broken, or is not the one its id names.
        """
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        start, end = self._offsets[number], self._offsets[number + 1]
        try:
            return curated_row(
                self._read(start, end),
                str(self._path),
                row_number=lambda: self._lines_before(start) + 1,
            )
        except OSError as error:
            raise _unreadable(self._path, error) from error

    def _found_offsets(self) -> array[int]:
        """Return where each row begins, and where the file ends."""
        with os.fdopen(self._descriptor, "rb", closefd=False) as file:
            head = file.read(len(PARQUET))
            if head == PARQUET or head.startswith(GZIP):
                raise DataError(
                    str(self._path),
                    [
                        "expected plain JSON Lines to read rows from as they are needed, got "
                        "another format or a compressed file; curate it first"
                    ],
                )
            position = len(UTF8_MARK) if head.startswith(UTF8_MARK) else 0
            file.seek(position)
            offsets = array("Q")
            for line in file:
                if not line.isspace():
                    offsets.append(position)
                position += len(line)
            offsets.append(position)
            return offsets

    def _read(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` to `end`; fewer where the file has since been cut short."""
        parts: list[bytes] = []
        while start < end and (part := os.pread(self._descriptor, end - start, start)):
            parts.append(part)
            start += len(part)
        return b"".join(parts)

    def _lines_before(self, offset: int) -> int:
        starts = range(0, offset, _READ_BYTES)
        return sum(self._read(s, min(s + _READ_BYTES, offset)).count(b"\n") for s in starts)


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(str(path), [f"cannot be read: {error.strerror or error}"])
