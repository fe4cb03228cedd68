"""The cursor: where in the data a run stands, exactly, whatever the number of ranks.

Invariant: any way of splitting an epoch into takes gives every row exactly once, in the same
order. The order of an epoch is a pure function of seed, epoch and number of rows: the row indices
sorted by SHA-256 of the three numbers `seed, epoch, index`, each as 8 bytes big-endian. It depends
on no library's random generator and no release, so a run can be resumed years later; a cursor
carries the digest of its order and is refused where that would come out otherwise.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

from strongroom.canonical import JsonObject
from strongroom.errors import FormatError, InputError
from strongroom.names import Digest

ORDER = "sha256-sort/1"
"""The name of the order, stored with every cursor: another algorithm gets another name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cursor:
    """The next row to be taken: `position` of the order of `epoch`, counted over all ranks.

    `position` is below `num_rows`: at the end of an epoch stands position 0 of the next.
    """

    seed: int
    num_rows: int
    epoch: int = 0
    position: int = 0

    def __post_init__(self) -> None:
        if self.num_rows < 1:
            raise InputError(f"cursor: expected at least one row, got {self.num_rows}")
        if min(self.seed, self.epoch) < 0 or max(self.seed, self.epoch) >= 2**53:
            raise InputError(
                "cursor: expected seed and epoch of 0 to 2**53 - 1, "
                f"got seed {self.seed}, epoch {self.epoch}"
            )
        if not 0 <= self.position < self.num_rows:
            raise InputError(
                f"cursor: expected a position below {self.num_rows} rows, got {self.position}"
            )

    def to_json(self) -> JsonObject:
        """Return it as a checkpoint keeps it."""
        return {
            "order": ORDER,
            "order_digest": str(order_digest(self)),
            "seed": self.seed,
            "num_rows": self.num_rows,
            "epoch": self.epoch,
            "position": self.position,
        }

    @classmethod
    def from_json(cls, document: JsonObject) -> Self:
        """Read a stored cursor.

        Raises:
            FormatError: malformed, or of an order that this release does not reproduce.
        """
        if document.get("order") != ORDER:
            raise FormatError(
                f"cursor: expected the order {ORDER!r}, got {document.get('order')!r}; "
                "resume with the release that wrote it"
            )
        numbers: dict[str, int] = {}
        for name in ("seed", "num_rows", "epoch", "position"):
            value = document.get(name)
            if type(value) is not int:
                raise FormatError(f"cursor: expected a whole number as {name}, got {value!r}")
            numbers[name] = value
        try:
            cursor = cls(**numbers)
        except InputError as error:
            raise FormatError(f"stored {error}") from error
        expected = str(order_digest(cursor))
        if document.get("order_digest") != expected:
            raise FormatError(
                f"cursor: expected the order digest {expected}, got "
                f"{document.get('order_digest')!r}; the rows would come in another order"
            )
        return cursor


def order(seed: int, epoch: int, num_rows: int) -> list[int]:
    """Return the row indices of an epoch in the order in which they are trained on."""
    return list(_order(seed, epoch, num_rows))


def order_digest(cursor: Cursor) -> Digest:
    """Digest of the order of the cursor's epoch: its indices, each as 8 bytes big-endian."""
    return _order_digest(cursor.seed, cursor.epoch, cursor.num_rows)


def take(cursor: Cursor, num_rows: int) -> tuple[list[int], Cursor]:
    """Take the next rows, over the end of an epoch if need be.

    Returns:
        The row indices, in order, and the cursor after them.
    """
    if num_rows < 0:
        raise InputError(f"cursor: expected to take 0 or more rows, got {num_rows}")
    taken: list[int] = []
    while (missing := num_rows - len(taken)) > 0:
        rows = _order(cursor.seed, cursor.epoch, cursor.num_rows)
        end = min(cursor.position + missing, cursor.num_rows)
        taken += rows[cursor.position : end]
        if end == cursor.num_rows:
            cursor = replace(cursor, epoch=cursor.epoch + 1, position=0)
        else:
            cursor = replace(cursor, position=end)
    return taken, cursor


# Training asks at every step: the order of a million rows takes a second to make.
@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, num_rows: int) -> tuple[int, ...]:
    prefix = hashlib.sha256(struct.pack(">QQ", seed, epoch))

    def key(index: int) -> bytes:
        keyed = prefix.copy()
        keyed.update(struct.pack(">Q", index))
        return keyed.digest()

    return tuple(sorted(range(num_rows), key=key))


@lru_cache(maxsize=2)
def _order_digest(seed: int, epoch: int, num_rows: int) -> Digest:
    rows = _order(seed, epoch, num_rows)
    return Digest.of(struct.pack(f">{num_rows}Q", *rows))
