"""Laws of the cursor: the order of the data does not depend on how it is taken."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from strongroom import canonical
from strongroom.data.cursor import Cursor, order, take

SEEDS = st.integers(0, 2**53 - 1)
NUM_ROWS = st.integers(1, 60)
TAKES = st.lists(st.integers(0, 25), max_size=12)


@given(seed=SEEDS, num_rows=NUM_ROWS, takes=TAKES)
def test_any_takes_give_the_epochs_one_after_another(
    seed: int, num_rows: int, takes: list[int]
) -> None:
    cursor = Cursor(seed=seed, num_rows=num_rows)
    taken: list[int] = []
    for size in takes:
        rows, cursor = take(cursor, size)
        assert len(rows) == size
        taken += rows
    whole = [row for epoch in range(cursor.epoch + 1) for row in order(seed, epoch, num_rows)]
    assert taken == whole[: sum(takes)]
    assert cursor.epoch * num_rows + cursor.position == sum(takes)


@given(seed=SEEDS, num_rows=NUM_ROWS, epoch=st.integers(0, 3))
def test_an_epoch_has_every_row_exactly_once(seed: int, num_rows: int, epoch: int) -> None:
    assert sorted(order(seed, epoch, num_rows)) == list(range(num_rows))


@given(seed=SEEDS, num_rows=NUM_ROWS, before=st.integers(0, 150), after=st.integers(0, 80))
def test_a_cursor_read_back_goes_on_as_if_nothing_had_been(
    seed: int, num_rows: int, before: int, after: int
) -> None:
    _, cursor = take(Cursor(seed=seed, num_rows=num_rows), before)
    stored = canonical.dumps(cursor.to_json())
    restored = Cursor.from_json(json.loads(stored))
    assert restored == cursor
    assert take(restored, after) == take(cursor, after)
