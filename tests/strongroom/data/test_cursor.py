from __future__ import annotations

import hashlib
from typing import Any

import pytest

from strongroom.data.cursor import Cursor, order, order_digest, take
from strongroom.errors import FormatError, InputError


def test_the_order_is_the_one_that_was_released() -> None:
    # These values stand for ever: a run of last year resumes by them.
    assert order(seed=0, epoch=0, num_rows=10) == [5, 4, 3, 9, 7, 0, 2, 6, 1, 8]
    assert order(seed=7, epoch=3, num_rows=6) == [3, 4, 1, 0, 5, 2]


def test_the_order_is_what_the_module_says_it_is() -> None:
    def key(index: int) -> bytes:
        numbers = (42, 5, index)
        return hashlib.sha256(b"".join(n.to_bytes(8, "big") for n in numbers)).digest()

    assert order(seed=42, epoch=5, num_rows=100) == sorted(range(100), key=key)


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {tuple(order(seed, epoch, 50)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


def test_a_take_goes_over_the_end_of_an_epoch() -> None:
    rows, cursor = take(Cursor(seed=1, num_rows=4, position=3), 6)
    assert rows == [order(1, 0, 4)[3], *order(1, 1, 4), order(1, 2, 4)[0]]
    assert (cursor.epoch, cursor.position) == (2, 1)


def test_the_end_of_an_epoch_is_the_start_of_the_next() -> None:
    rows, cursor = take(Cursor(seed=1, num_rows=4), 4)
    assert sorted(rows) == [0, 1, 2, 3]
    assert cursor == Cursor(seed=1, num_rows=4, epoch=1)


def test_taking_nothing_changes_nothing() -> None:
    cursor = Cursor(seed=1, num_rows=4, position=2)
    assert take(cursor, 0) == ([], cursor)


def test_the_digest_of_the_order_changes_with_the_epoch_and_not_with_the_position() -> None:
    start = Cursor(seed=1, num_rows=9)
    assert order_digest(start) == order_digest(take(start, 5)[1])
    assert order_digest(start) != order_digest(take(start, 9)[1])


@pytest.mark.parametrize(
    "numbers",
    [
        {"seed": 0, "num_rows": 0},
        {"seed": -1, "num_rows": 1},
        {"seed": 2**53, "num_rows": 1},
        {"seed": 0, "num_rows": 4, "position": 4},
        {"seed": 0, "num_rows": 4, "position": -1},
        {"seed": 0, "num_rows": 4, "epoch": -1},
    ],
)
def test_a_cursor_that_stands_nowhere_is_refused(numbers: dict[str, int]) -> None:
    with pytest.raises(InputError, match="cursor: expected"):
        Cursor(**numbers)


def test_a_negative_take_is_refused() -> None:
    with pytest.raises(InputError, match="0 or more"):
        take(Cursor(seed=0, num_rows=4), -1)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"order": "numpy/1"}, "the order 'sha256-sort/1', got 'numpy/1'"),
        ({"order": None}, "got None"),
        ({"position": 5}, "stored cursor"),
        ({"position": "2"}, "whole number as position"),
        ({"epoch": True}, "whole number as epoch"),
        ({"seed": 2}, "the order digest"),
        ({"num_rows": 6}, "the order digest"),
        ({"epoch": 1}, "the order digest"),
        ({"order_digest": None}, "the order digest"),
    ],
)
def test_a_stored_cursor_that_was_changed_is_refused(change: dict[str, Any], reason: str) -> None:
    document = Cursor(seed=1, num_rows=5, position=2).to_json()
    with pytest.raises(FormatError, match=reason):
        Cursor.from_json(document | change)
