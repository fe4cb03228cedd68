from __future__ import annotations

import hashlib
from collections import Counter
from itertools import pairwise

import pytest

from strongroom.data.cursor import order
from strongroom.data.windows import Windows


def windows(num_rows: int, window_rows: int, *, seed: int = 3, epoch: int = 0) -> Windows:
    return Windows(seed=seed, epoch=epoch, num_rows=num_rows, window_rows=window_rows)


def walked(order_of: Windows) -> list[tuple[int, ...]]:
    """Return the rows of all windows, in order."""
    found: list[tuple[int, ...]] = []
    position = 0
    while position < order_of.num_rows:
        window = order_of.holding(position)
        assert (window.place, window.start) == (len(found), position)
        found.append(window.rows)
        position += len(window.rows)
    return found


def test_the_order_is_the_one_that_was_released() -> None:
    # These values stand for ever: a run of last year resumes by them.
    assert order(seed=0, epoch=0, num_rows=10, window_rows=4) == [5, 4, 7, 6, 3, 0, 2, 1, 9, 8]
    assert order(seed=7, epoch=3, num_rows=11, window_rows=3) == [
        *(6, 8, 7),
        *(3, 4, 5),
        *(1, 0, 2),
        *(10, 9),
    ]


@pytest.mark.parametrize(("num_rows", "size"), [(1, 1), (10, 3), (9, 3), (64, 1), (65, 8), (7, 7)])
def test_every_window_comes_once_with_its_rows_in_an_order_of_their_own(
    num_rows: int, size: int
) -> None:
    def key(index: int) -> bytes:
        return hashlib.sha256(b"".join(n.to_bytes(8, "big") for n in (3, 0, index))).digest()

    wanted = [
        tuple(sorted(range(first, min(first + size, num_rows)), key=key))
        for first in range(0, num_rows, size)
    ]
    found = walked(windows(num_rows, size))
    assert sorted(found) == sorted(wanted)
    assert len(found) == windows(num_rows, size).count


@pytest.mark.parametrize(("num_rows", "size"), [(10, 3), (10, 4), (65, 8), (101, 1)])
def test_a_row_is_found_from_any_position_in_its_window(num_rows: int, size: int) -> None:
    for epoch in range(6):
        order_of = windows(num_rows, size, epoch=epoch)
        position = 0
        for rows in walked(order_of):
            for offset in range(len(rows)):
                assert order_of.holding(position + offset) == order_of.holding(position)
            position += len(rows)


def test_the_place_of_the_shorter_window_is_known_without_the_others() -> None:
    places = set()
    for epoch in range(40):
        order_of = windows(22, 5, epoch=epoch)
        place = order_of.place_of_last
        assert sorted(walked(order_of)[place]) == [20, 21]
        places.add(place)
    assert places == set(range(5))


@pytest.mark.parametrize("count", [2, 3, 5, 8, 11])
def test_every_window_comes_as_often_at_every_place(count: int) -> None:
    epochs = 600
    seen: Counter[tuple[int, int]] = Counter()
    for epoch in range(epochs):
        for place, (row,) in enumerate(walked(windows(count, 1, epoch=epoch))):
            seen[place, row] += 1
    expected = epochs / count
    # Five standard deviations of a fair shuffle.
    allowed = 5 * (expected * (1 - 1 / count)) ** 0.5
    assert len(seen) == count**2
    assert all(abs(times - expected) <= allowed for times in seen.values())


def test_neighbouring_windows_do_not_stay_neighbours() -> None:
    rows = order(seed=1, epoch=0, num_rows=400, window_rows=1)
    steps = [after - before for before, after in pairwise(rows)]
    assert steps.count(1) < 10
    assert len(set(steps)) > 200


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {
        tuple(order(seed, epoch, 60, window_rows=6)) for seed in range(4) for epoch in range(4)
    }
    assert len(orders) == 16
