"""Laws of the cursor: the order of the data does not depend on how it is taken."""

from __future__ import annotations

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from strongroom import canonical
from strongroom.data.blocks import take_blocks
from strongroom.data.cursor import Cursor, order, take
from strongroom.training.batches import micro_parts, rank_part

SEEDS = st.integers(0, 2**53 - 1)
NUM_ROWS = st.integers(1, 60)
WINDOW_ROWS = st.none() | st.integers(1, 70)
TAKES = st.lists(st.integers(0, 25), max_size=12)
MAX_TOKENS = 12
LENGTHS = st.lists(st.integers(1, MAX_TOKENS), min_size=1, max_size=40)
WORLD_SIZES = st.sampled_from([1, 2, 3, 4, 8])


def resumed(cursor: Cursor, start: Cursor) -> Cursor:
    """Return the cursor as a checkpoint brings it back."""
    stored = canonical.dumps(cursor.to_json())
    restored = Cursor.from_json(json.loads(stored), start=start)
    assert restored == Cursor.from_json(json.loads(stored)) == cursor
    return restored


def epochs(start: Cursor, count: int) -> list[int]:
    return [
        row
        for epoch in range(count)
        for row in order(start.seed, epoch, start.num_rows, start.window_rows)
    ]


@given(seed=SEEDS, num_rows=NUM_ROWS, window_rows=WINDOW_ROWS, takes=TAKES)
def test_any_takes_and_resumes_give_the_epochs_one_after_another(
    seed: int, num_rows: int, window_rows: int | None, takes: list[int]
) -> None:
    start = cursor = Cursor(seed=seed, num_rows=num_rows, window_rows=window_rows)
    taken: list[int] = []
    for size in takes:
        rows, cursor = take(resumed(cursor, start), size)
        assert len(rows) == size
        taken += rows
    assert taken == epochs(start, cursor.epoch + 1)[: sum(takes)]
    assert cursor.epoch * num_rows + cursor.position == sum(takes)


@given(seed=SEEDS, num_rows=NUM_ROWS, window_rows=WINDOW_ROWS, epoch=st.integers(0, 3))
def test_an_epoch_has_every_row_exactly_once(
    seed: int, num_rows: int, window_rows: int | None, epoch: int
) -> None:
    assert sorted(order(seed, epoch, num_rows, window_rows)) == list(range(num_rows))


@given(seed=SEEDS, num_rows=NUM_ROWS, window_rows=st.integers(1, 70), epoch=st.integers(0, 3))
def test_the_rows_of_a_window_come_together(
    seed: int, num_rows: int, window_rows: int, epoch: int
) -> None:
    numbers = [row // window_rows for row in order(seed, epoch, num_rows, window_rows)]
    changes = sum(before != after for before, after in pairwise(numbers))
    assert changes == len(set(numbers)) - 1


@given(seed=SEEDS, num_rows=NUM_ROWS, more=st.integers(0, 10), epoch=st.integers(0, 3))
def test_one_window_of_all_rows_is_the_order_without_windows(
    seed: int, num_rows: int, more: int, epoch: int
) -> None:
    assert order(seed, epoch, num_rows, num_rows + more) == order(seed, epoch, num_rows)


@given(
    seed=SEEDS,
    num_rows=NUM_ROWS,
    window_rows=WINDOW_ROWS,
    before=st.integers(0, 150),
    after=st.integers(0, 80),
)
def test_a_cursor_read_back_goes_on_as_if_nothing_had_been(
    seed: int, num_rows: int, window_rows: int | None, before: int, after: int
) -> None:
    start = Cursor(seed=seed, num_rows=num_rows, window_rows=window_rows)
    _, cursor = take(start, before)
    assert take(resumed(cursor, start), after) == take(cursor, after)


@given(seed=SEEDS, lengths=LENGTHS, window_rows=WINDOW_ROWS, takes=TAKES)
def test_any_takes_and_resumes_give_the_same_blocks(
    seed: int, lengths: list[int], window_rows: int | None, takes: list[int]
) -> None:
    start = cursor = Cursor(seed=seed, num_rows=len(lengths), window_rows=window_rows)
    blocks: list[tuple[int, ...]] = []
    for count in takes:
        some, cursor = take_blocks(resumed(cursor, start), count, lengths.__getitem__, MAX_TOKENS)
        assert len(some) == count
        blocks += some
    assert (blocks, cursor) == take_blocks(start, sum(takes), lengths.__getitem__, MAX_TOKENS)
    rows = [row for block in blocks for row in block]
    assert rows == epochs(start, cursor.epoch + 1)[: len(rows)]
    assert cursor.epoch * len(lengths) + cursor.position == len(rows)


@given(seed=SEEDS, lengths=LENGTHS, window_rows=WINDOW_ROWS, count=st.integers(1, 60))
def test_a_block_is_closed_where_the_next_row_does_not_fit_or_the_epoch_ends(
    seed: int, lengths: list[int], window_rows: int | None, count: int
) -> None:
    start = Cursor(seed=seed, num_rows=len(lengths), window_rows=window_rows)
    blocks, _ = take_blocks(start, count, lengths.__getitem__, MAX_TOKENS)
    taken = 0
    for block, following in pairwise(blocks):
        tokens = sum(lengths[row] for row in block)
        assert 0 < tokens <= MAX_TOKENS
        taken += len(block)
        epoch_ends = taken % len(lengths) == 0
        assert epoch_ends or tokens + lengths[following[0]] > MAX_TOKENS
        assert (taken - 1) // len(lengths) == (taken - len(block)) // len(lengths)


@given(
    seed=SEEDS,
    lengths=LENGTHS,
    window_rows=WINDOW_ROWS,
    packs=st.booleans(),
    launches=st.lists(
        st.tuples(WORLD_SIZES, st.none() | st.integers(1, 5), st.integers(0, 3)), max_size=6
    ),
)
def test_ranks_micro_batches_and_resumes_change_neither_the_rows_nor_their_order(
    seed: int,
    lengths: list[int],
    window_rows: int | None,
    *,
    packs: bool,
    launches: list[tuple[int, int | None, int]],
) -> None:
    batch_rows = 24  # a multiple of every number of ranks
    start = cursor = Cursor(seed=seed, num_rows=len(lengths), window_rows=window_rows)
    trained: list[int] = []
    for world_size, micro_batch_rows, steps in launches:
        cursor = resumed(cursor, start)
        for _ in range(steps):
            if packs:
                sequences, cursor = take_blocks(cursor, batch_rows, lengths.__getitem__, MAX_TOKENS)
            else:
                rows, cursor = take(cursor, batch_rows)
                sequences = [(row,) for row in rows]
            parts = [
                micro_parts(
                    rank_part(sequences, rank=rank, world_size=world_size), micro_batch_rows
                )
                for rank in range(world_size)
            ]
            # Every rank takes part in every pass, or some would wait for ever.
            assert len({tuple(map(len, part)) for part in parts}) == 1
            most = micro_batch_rows or batch_rows
            assert all(0 < len(micro) <= most for part in parts for micro in part)
            trained += [
                row for part in parts for micro in part for sequence in micro for row in sequence
            ]
    assert trained == epochs(start, cursor.epoch + 1)[: len(trained)]
    assert cursor.epoch * len(lengths) + cursor.position == len(trained)
