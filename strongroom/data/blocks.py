"""Blocks: several rows in one sequence, so that short rows do not pay for padding.

Law: the blocks of an epoch, joined, are the rows of its order, each once. A block takes rows in the
order of the cursor and is closed where the next does not fit, or where the epoch ends; so blocks
depend on order and lengths alone, and not on the number of ranks, on micro-batches or on how often
a run resumed. A save falls between blocks, never inside one, which is why the cursor is all of the
packing's state.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

from strongroom.data.cursor import Cursor, upcoming
from strongroom.data.packing import Encoded
from strongroom.errors import InputError


def take_blocks(
    cursor: Cursor, count: int, length_of: Callable[[int], int], max_tokens: int
) -> tuple[list[tuple[int, ...]], Cursor]:
    """Take the next `count` blocks, over the end of an epoch if need be.

    Args:
        cursor: where a block begins: the start of a run, or what this function returned.
        count: how many.
        length_of: the number of tokens of the row of an index; asked for the rows taken and for the
            one after them.
        max_tokens: the most tokens of a block.

    Returns:
        The row indices of each block, in order, and the cursor after them.

    Raises:
        InputError: a row alone is longer than `max_tokens`.
    """
    if count < 0:
        raise InputError(f"cursor: expected to take 0 or more blocks, got {count}")
    blocks: list[tuple[int, ...]] = []
    for _ in range(count):
        block, cursor = _next_block(cursor, length_of, max_tokens)
        blocks.append(block)
    return blocks, cursor


def _next_block(
    cursor: Cursor, length_of: Callable[[int], int], max_tokens: int
) -> tuple[tuple[int, ...], Cursor]:
    epoch = cursor.epoch
    block: tuple[int, ...] = ()
    room = max_tokens
    while cursor.epoch == epoch:
        rows = upcoming(cursor, max_tokens)  # no more can fit
        fitting = 0
        for row in rows:
            room -= length_of(row)
            if room < 0:
                break
            fitting += 1
        if fitting:
            block += rows[:fitting]
            cursor = cursor.after(fitting)
        if fitting < len(rows):
            break
    if not block:
        row = upcoming(cursor, 1)[0]
        raise InputError(
            f"row {row} of the data: expected at most {max_tokens} tokens, got {length_of(row)}; "
            "raise data.max_tokens, or curate anew so that it is dropped"
        )
    return block, cursor


class EncodedRows:
    """Rows as tokens, by index; what was encoded to be measured is not encoded again to be used.

    Measuring costs as much as encoding, and every rank measures every row, since it has to know
    where the blocks of all ranks begin. So each length is kept, in 4 bytes a row: from the second
    epoch on nothing is measured. What was encoded is kept until it is let go of.
    """

    def __init__(self, encode: Callable[[int], Encoded], num_rows: int) -> None:
        self._encode = encode
        self._num_rows = num_rows
        self._lengths = array("I")  # 0: not known; made when first asked for
        self._kept: dict[int, Encoded] = {}

    def __getitem__(self, index: int) -> Encoded:
        return self._kept.get(index) or self._encode(index)

    def length_of(self, index: int) -> int:
        """Return the number of tokens of a row."""
        if not self._lengths:
            self._lengths = array("I", bytes(self._lengths.itemsize * self._num_rows))
        if not self._lengths[index]:
            encoded = self._kept[index] = self._encode(index)
            self._lengths[index] = len(encoded.token_ids)
        return self._lengths[index]

    def let_go(self) -> None:
        """Keep no tokens any longer; lengths stay known."""
        self._kept.clear()
