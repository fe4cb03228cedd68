from __future__ import annotations

import hashlib
from typing import Any

import pytest

from strongroom.data import cursor as module
from strongroom.data.cursor import Cursor, order, order_digest, take, upcoming
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
        {"seed": 0, "num_rows": 2**53},
        {"seed": 0, "num_rows": 4, "window_rows": 0},
        {"seed": 0, "num_rows": 4, "window_rows": 2**53},
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
        ({"order": "numpy/1"}, "the order 'sha256-sort/1' or 'sha256-windows/1', got 'numpy/1'"),
        ({"order": ["sha256-sort/1"]}, "the order"),
        ({"order": "sha256-windows/1"}, "whole number as window_rows"),
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


def test_a_cursor_of_the_first_release_is_written_as_it_was() -> None:
    assert Cursor(seed=7, num_rows=11, epoch=3, position=5).to_json() == {
        "order": "sha256-sort/1",
        "order_digest": "sha256:71b90d8b83ad4ea9bfc2de7ee04935361f7cfb15685ee69942116866e80f5e44",
        "seed": 7,
        "num_rows": 11,
        "epoch": 3,
        "position": 5,
    }


# --- in windows -----------------------------------------------------------------------

WINDOWED = Cursor(seed=7, num_rows=11, epoch=3, position=5, window_rows=3)


def test_a_windowed_cursor_is_written_with_its_window() -> None:
    assert WINDOWED.to_json() == {
        "order": "sha256-windows/1",
        "order_digest": "sha256:028e720cb867ee1b6bd7bc84beaf2b3504af40d515b8b88ad88b6273d0e69495",
        "seed": 7,
        "num_rows": 11,
        "window_rows": 3,
        "epoch": 3,
        "position": 5,
    }


def test_the_digest_of_a_windowed_order_is_that_of_the_window_in_hand() -> None:
    digests = [
        str(order_digest(take(Cursor(seed=7, num_rows=11, window_rows=3), n)[1])) for n in range(12)
    ]
    # Windows of 3, 3, 3 and 2 rows, in whatever order, and the first row of the next epoch.
    assert len(set(digests)) == 5
    assert digests == sorted(digests, key=digests.index)


def test_only_the_window_in_hand_is_shown() -> None:
    cursor = Cursor(seed=0, num_rows=10, window_rows=4)
    assert upcoming(cursor, 100) == (5, 4, 7, 6)
    assert upcoming(cursor.after(3), 100) == (6,)
    assert upcoming(cursor.after(4), 2) == (3, 0)


def test_no_more_rows_are_ordered_at_a_time_than_there_are() -> None:
    sizes = {None: 10, 4: 4, 10: 10, 2**52: 10}
    for window_rows, expected in sizes.items():
        cursor = Cursor(seed=0, num_rows=10, window_rows=window_rows)
        assert cursor.rows_at_a_time == expected
        if window_rows is not None and window_rows > 10:
            whole = Cursor(seed=0, num_rows=10, window_rows=10)
            assert order_digest(cursor) == order_digest(whole)


def test_a_cursor_cannot_go_past_the_end_of_an_epoch_at_once() -> None:
    with pytest.raises(InputError, match="a position below 4 rows"):
        Cursor(seed=0, num_rows=4, position=2).after(3)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"window_rows": 4}, "the order digest"),
        ({"window_rows": 0}, "stored cursor: expected windows"),
        ({"window_rows": None}, "whole number as window_rows"),
        ({"num_rows": 12}, "the order digest"),
        ({"seed": 8}, "the order digest"),
        ({"epoch": 4}, "the order digest"),
        ({"position": 6}, "the order digest"),  # another window
        ({"order": "sha256-sort/1"}, "the order digest"),
    ],
)
def test_a_stored_windowed_cursor_that_was_changed_is_refused(
    change: dict[str, Any], reason: str
) -> None:
    document = WINDOWED.to_json()
    assert Cursor.from_json(document) == WINDOWED
    with pytest.raises(FormatError, match=reason):
        Cursor.from_json(document | change)


def test_rows_without_end_take_the_time_of_a_window() -> None:
    num_rows = 2**53 - 1
    cursor = Cursor(seed=1, num_rows=num_rows, position=num_rows - 3, window_rows=8)
    rows, after = take(cursor, 20)
    assert len(set(rows)) == 20
    assert (after.epoch, after.position) == (1, 17)
    assert Cursor.from_json(after.to_json()) == after


# --- against the run's own data -------------------------------------------------------


@pytest.mark.parametrize(
    ("forged", "reason"),
    [
        ({"num_rows": 2**52}, "expected num_rows 5, .*got 4503599627370496"),
        ({"num_rows": 2**52, "window_rows": 2**52}, "expected num_rows 5"),
        ({"window_rows": 2**52}, "expected window_rows 2, .*got 4503599627370496"),
        ({"seed": 9}, "expected seed 1, .*got 9"),
        ({"order": "sha256-sort/1"}, "expected window_rows 2, .*got None"),
    ],
)
def test_a_cursor_of_other_data_is_refused_before_its_order_is_made(
    monkeypatch: pytest.MonkeyPatch, forged: dict[str, Any], reason: str
) -> None:
    start = Cursor(seed=1, num_rows=5, window_rows=2)
    document = start.after(3).to_json()
    assert Cursor.from_json(document, start=start) == start.after(3)

    def made(cursor: Cursor) -> None:
        raise AssertionError(f"the order of {cursor} was made")

    monkeypatch.setattr(module, "order_digest", made)
    with pytest.raises(FormatError, match=reason):
        Cursor.from_json(document | forged, start=start)


def test_an_order_that_takes_too_long_to_make_is_left_to_who_has_the_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    document = Cursor(seed=1, num_rows=50).to_json() | {"order_digest": "sha256:other"}
    windowed = Cursor(seed=1, num_rows=50, window_rows=5).to_json() | {"order_digest": None}
    for wrong in (document, windowed):
        with pytest.raises(FormatError, match="the order digest"):
            Cursor.from_json(wrong, max_ordered_rows=50)
    with pytest.raises(FormatError, match="the order digest"):
        Cursor.from_json(windowed, max_ordered_rows=5)
    monkeypatch.setattr(module, "order_digest", None)  # called, it would raise
    assert Cursor.from_json(document, max_ordered_rows=49).num_rows == 50
    with pytest.raises(FormatError, match="whole number"):
        Cursor.from_json(document | {"epoch": None}, max_ordered_rows=49)
