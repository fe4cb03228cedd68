from __future__ import annotations

from collections import Counter

import pytest

from strongroom.data.blocks import EncodedRows, take_blocks
from strongroom.data.cursor import Cursor, order
from strongroom.data.packing import Encoded
from strongroom.errors import DataError, InputError

LENGTHS = [3, 5, 2, 7, 1, 4, 6]


def blocks_of(count: int, *, max_tokens: int = 8, cursor: Cursor | None = None) -> list[list[int]]:
    start = cursor or Cursor(seed=0, num_rows=len(LENGTHS))
    found, _ = take_blocks(start, count, LENGTHS.__getitem__, max_tokens)
    return [list(block) for block in found]


def test_a_block_takes_rows_in_order_for_as_long_as_they_fit() -> None:
    assert order(0, 0, 7) == [5, 4, 3, 0, 2, 6, 1]
    assert [[LENGTHS[row] for row in block] for block in blocks_of(5)] == [
        [4, 1],
        [7],
        [3, 2],
        [6],
        [5],  # the epoch ends
    ]


def test_a_block_may_be_filled_to_the_last_token() -> None:
    assert blocks_of(2, max_tokens=12) == [[5, 4, 3], [0, 2, 6]]


def test_a_block_never_holds_rows_of_two_epochs() -> None:
    found = blocks_of(4, max_tokens=1000)
    assert found == [order(0, epoch, 7) for epoch in range(4)]


def test_a_block_goes_on_from_one_window_to_the_next() -> None:
    cursor = Cursor(seed=0, num_rows=7, window_rows=2)
    assert blocks_of(1, max_tokens=1000, cursor=cursor) == [order(0, 0, 7, window_rows=2)]


def test_the_cursor_after_blocks_is_where_the_next_begins() -> None:
    start = Cursor(seed=0, num_rows=7)
    first, middle = take_blocks(start, 3, LENGTHS.__getitem__, 8)
    second, end = take_blocks(middle, 2, LENGTHS.__getitem__, 8)
    assert middle.position == 5
    assert (end.epoch, end.position) == (1, 0)
    assert take_blocks(start, 5, LENGTHS.__getitem__, 8) == (first + second, end)
    assert take_blocks(start, 0, LENGTHS.__getitem__, 8) == ([], start)


def test_a_row_that_no_block_can_hold_is_named() -> None:
    with pytest.raises(InputError, match="row 3 of the data: expected at most 6 tokens, got 7"):
        blocks_of(5, max_tokens=6)
    with pytest.raises(InputError, match="0 or more blocks"):
        blocks_of(-1)


# --- encoded once ---------------------------------------------------------------------


def encoded_rows(times: Counter[int]) -> EncodedRows:
    def encode(index: int) -> Encoded:
        times[index] += 1
        if LENGTHS[index] == 7:
            raise DataError("row 3", ["has 7 tokens, at most 6 are allowed"])
        return Encoded(token_ids=[index] * LENGTHS[index], trained=[True] * LENGTHS[index])

    return EncodedRows(encode, len(LENGTHS))


def test_a_row_that_was_measured_is_not_encoded_again_to_be_used() -> None:
    times: Counter[int] = Counter()
    rows = encoded_rows(times)
    assert [rows.length_of(index) for index in (1, 4, 1)] == [5, 1, 5]
    assert rows[1].token_ids == [1] * 5
    assert rows[4].token_ids == [4]
    assert times == {1: 1, 4: 1}


def test_lengths_stay_known_when_tokens_are_let_go_of() -> None:
    times: Counter[int] = Counter()
    rows = encoded_rows(times)
    rows.length_of(5)
    rows.let_go()
    assert rows.length_of(5) == 4
    assert times == {5: 1}
    assert rows[5].token_ids == [5] * 4
    assert times == {5: 2}
    assert rows.length_of(0) == 3  # index 0 is not mistaken for one that is known


def test_a_row_that_cannot_be_encoded_is_not_taken_for_one_of_no_length() -> None:
    rows = encoded_rows(Counter())
    for _ in range(2):
        with pytest.raises(DataError, match="at most 6"):
            rows.length_of(3)
