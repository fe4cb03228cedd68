"""The cursor: where in the data a run stands, exactly, whatever the number of ranks.

Invariant: any way of splitting an epoch into takes gives every row exactly once, in the same
order. The order of an epoch is a pure function of seed, epoch and number of rows: the row indices
sorted by SHA-256 of the three numbers `seed, epoch, index`, each as 8 bytes big-endian. It depends
on no library's random generator and no release, so a run can be resumed years later; a cursor
carries the digest of its order and is refused where that would come out otherwise.

Rows that do not fit into memory are shuffled in windows instead (`windows`): the order of an epoch
then takes memory for one window. A stream that shuffles through a buffer has to save the buffer, or
it loses its rows at a resume; a window has nothing to save, because which rows it holds and in what
order follows from the cursor.

The cursor is all the state there is. Between two saves lie whole optimizer steps, so accumulation
always begins anew where a run resumes, and so do blocks (`blocks`).
Source: issue huggingface/datasets 7901 (rows of a shuffle buffer lost and doubled).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

from strongroom.canonical import JsonObject
from strongroom.data.windows import Windows
from strongroom.errors import FormatError, InputError
from strongroom.names import Digest

ORDER = "sha256-sort/1"
WINDOWED_ORDER = "sha256-windows/1"
"""The name of the order, stored with every cursor: another algorithm gets another name."""
_PARAMETERS = {
    ORDER: ("seed", "num_rows"),
    WINDOWED_ORDER: ("seed", "num_rows", "window_rows"),
}
_END = 2**53
"""From here on a number of JSON is not exact."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cursor:
    """The next row to be taken: `position` of the order of `epoch`, counted over all ranks.

    `position` is below `num_rows`: at the end of an epoch stands position 0 of the next.

    Attributes:
        window_rows: rows are shuffled in windows of so many; None: all at once.
    """

    seed: int
    num_rows: int
    epoch: int = 0
    position: int = 0
    window_rows: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.num_rows < _END:
            raise InputError(f"cursor: expected 1 to 2**53 - 1 rows, got {self.num_rows}")
        if self.window_rows is not None and not 1 <= self.window_rows < _END:
            raise InputError(
                f"cursor: expected windows of 1 to 2**53 - 1 rows, got {self.window_rows}"
            )
        if min(self.seed, self.epoch) < 0 or max(self.seed, self.epoch) >= _END:
            raise InputError(
                "cursor: expected seed and epoch of 0 to 2**53 - 1, "
                f"got seed {self.seed}, epoch {self.epoch}"
            )
        if not 0 <= self.position < self.num_rows:
            raise InputError(
                f"cursor: expected a position below {self.num_rows} rows, got {self.position}"
            )

    @property
    def order_name(self) -> str:
        """The name of the order it walks."""
        return ORDER if self.window_rows is None else WINDOWED_ORDER

    @property
    def rows_at_a_time(self) -> int:
        """How many rows are put in order at a time, which takes memory and time in proportion."""
        return min(self.window_rows or self.num_rows, self.num_rows)

    def after(self, num_rows: int) -> Self:
        """Return the cursor after the next `num_rows` rows, which the epoch must still have."""
        position = self.position + num_rows
        if position == self.num_rows:
            return replace(self, epoch=self.epoch + 1, position=0)
        return replace(self, position=position)

    def to_json(self) -> JsonObject:
        """Return it as a checkpoint keeps it."""
        return {
            "order": self.order_name,
            "order_digest": str(order_digest(self)),
            **{name: getattr(self, name) for name in _PARAMETERS[self.order_name]},
            "epoch": self.epoch,
            "position": self.position,
        }

    @classmethod
    def from_json(
        cls, document: JsonObject, *, start: Cursor | None = None, max_ordered_rows: int = _END
    ) -> Self:
        """Read a stored cursor.

        Args:
            document: as `to_json` made it, or as somebody forged it.
            start: where the run that goes on by it began. A cursor over other data, or in another
                order, is refused before anything is done that takes time in proportion to a number
                it names.
            max_ordered_rows: an order of more `rows_at_a_time` is not made, and so not compared
                with its digest: for those who check the document without the data.

        Raises:
            FormatError: malformed, not of `start`, or of an order that this release does not
                reproduce.
        """
        cursor = cls._parsed(document)
        if start is not None:
            for name in _PARAMETERS[WINDOWED_ORDER]:
                expected, got = getattr(start, name), getattr(cursor, name)
                if got != expected:
                    raise FormatError(
                        f"cursor: expected {name} {expected}, as the run and its data have it, "
                        f"got {got}; resume with the data that the run began with"
                    )
        if cursor.rows_at_a_time > max_ordered_rows:
            return cursor
        digest = str(order_digest(cursor))
        if document.get("order_digest") != digest:
            raise FormatError(
                f"cursor: expected the order digest {digest}, got "
                f"{document.get('order_digest')!r}; the rows would come in another order"
            )
        return cursor

    @classmethod
    def _parsed(cls, document: JsonObject) -> Self:
        parameters = _PARAMETERS.get(str(document.get("order")))
        if parameters is None:
            raise FormatError(
                f"cursor: expected the order {ORDER!r} or {WINDOWED_ORDER!r}, "
                f"got {document.get('order')!r}; resume with the release that wrote it"
            )
        numbers: dict[str, int] = {}
        for name in (*parameters, "epoch", "position"):
            value = document.get(name)
            if type(value) is not int:
                raise FormatError(f"cursor: expected a whole number as {name}, got {value!r}")
            numbers[name] = value
        try:
            return cls(**numbers)
        except InputError as error:
            raise FormatError(f"stored {error}") from error


def order(seed: int, epoch: int, num_rows: int, window_rows: int | None = None) -> list[int]:
    """Return the row indices of an epoch in the order in which they are trained on."""
    cursor = Cursor(seed=seed, epoch=epoch, num_rows=num_rows, window_rows=window_rows)
    return take(cursor, num_rows)[0]


def order_digest(cursor: Cursor) -> Digest:
    """Digest of the order that the cursor walks.

    Without windows that is the order of its epoch: the indices, each as 8 bytes big-endian. With
    windows it is, in the same form: seed, epoch, number of rows, rows of a window, the place of the
    window that ends the data, the place of the window that the cursor stands in, and its indices.
    """
    windows = _windows(cursor)
    if cursor.window_rows is None:
        return _order_digest(windows, None)
    return _order_digest(windows, windows.holding(cursor.position).start)


def upcoming(cursor: Cursor, max_rows: int) -> tuple[int, ...]:
    """Return the next row indices, in order: at least one, and at most to the end of the window."""
    window = _windows(cursor).holding(cursor.position)
    begin = cursor.position - window.start
    return window.rows[begin : begin + max_rows]


def take(cursor: Cursor, num_rows: int) -> tuple[list[int], Cursor]:
    """Take the next rows, over the end of an epoch if need be.

    Returns:
        The row indices, in order, and the cursor after them.
    """
    if num_rows < 0:
        raise InputError(f"cursor: expected to take 0 or more rows, got {num_rows}")
    taken: list[int] = []
    while (missing := num_rows - len(taken)) > 0:
        rows = upcoming(cursor, missing)
        taken += rows
        cursor = cursor.after(len(rows))
    return taken, cursor


def _windows(cursor: Cursor) -> Windows:
    return Windows(
        seed=cursor.seed,
        epoch=cursor.epoch,
        num_rows=cursor.num_rows,
        window_rows=cursor.rows_at_a_time,
    )


@lru_cache(maxsize=2)
def _order_digest(windows: Windows, start: int | None) -> Digest:
    """Digest of the window at `start`, or of all rows where there are no windows."""
    window = windows.holding(start or 0)
    numbers = window.rows
    if start is not None:
        numbers = (
            windows.seed,
            windows.epoch,
            windows.num_rows,
            windows.window_rows,
            windows.place_of_last,
            window.place,
            *window.rows,
        )
    return Digest.of(struct.pack(f">{len(numbers)}Q", *numbers))
