from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from strongroom import canonical
from strongroom.data import cursor as cursor_module
from strongroom.data.config import DataConfig, SourceConfig
from strongroom.data.cursor import Cursor, order
from strongroom.data.packing import Encoded
from strongroom.data.rows import read_curated
from strongroom.data.streaming import RowsOnDisk
from strongroom.errors import DataError, FormatError
from strongroom.model.build import tokenizer_from
from strongroom.training.batches import TrainingRows, micro_parts, rank_part
from tests.support.tiny_model import make_chat_rows, make_tiny_model

NUM_ROWS = 30
SEED = 5
Sequences: TypeAlias = Sequence[tuple[int, ...]]
Tokenizer: TypeAlias = Any
"""Of transformers, which publishes no types."""


@given(world_size=st.integers(1, 8), per_rank=st.integers(1, 5))
def test_the_parts_of_all_ranks_are_the_global_batch_in_order(
    world_size: int, per_rank: int
) -> None:
    indices = list(range(world_size * per_rank))
    parts = [rank_part(indices, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert {len(part) for part in parts} == {per_rank}
    assert [index for part in parts for index in part] == indices


@pytest.mark.parametrize(
    ("micro_batch_rows", "expected"),
    [
        (None, [[0, 1, 2, 3, 4]]),
        (1, [[0], [1], [2], [3], [4]]),
        (2, [[0, 1], [2, 3], [4]]),
        (5, [[0, 1, 2, 3, 4]]),
        (9, [[0, 1, 2, 3, 4]]),
    ],
)
def test_a_part_is_cut_into_micro_batches_in_order(
    micro_batch_rows: int | None, expected: list[list[int]]
) -> None:
    assert micro_parts(list(range(5)), micro_batch_rows) == expected


# --- rows as batches ------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tokenizer_from(make_tiny_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("rows")
    make_chat_rows(folder / "train.jsonl", NUM_ROWS)
    return folder


def config_of(**changes: Any) -> DataConfig:  # noqa: ANN401 -- as the fields are
    return replace(DataConfig(sources=(SourceConfig(uri="rows"),), max_tokens=128), **changes)


KINDS = {
    "rows": config_of(),
    "rows in windows": config_of(shuffle_window_rows=8),
    "blocks": config_of(packing="blocks"),
    "blocks in windows": config_of(packing="blocks", shuffle_window_rows=8),
}


@pytest.fixture
def rows(folder: Path, tokenizer: Tokenizer) -> TrainingRows:
    return TrainingRows.open(folder, tokenizer=tokenizer, config=config_of())


def test_a_batch_holds_the_rows_asked_for(rows: TrainingRows) -> None:
    together = rows.batch([(5,), (0,), (7,)])
    assert together.num_rows == 3
    assert together.positions_BT is None
    for place, index in enumerate([5, 0, 7]):
        alone = rows.batch([(index,)])
        length = alone.num_tokens
        assert torch.equal(together.tokens_BT[place, :length], alone.tokens_BT[0, :length])
        assert torch.equal(together.labels_BT[place, :length], alone.labels_BT[0, :length])
        assert int(together.attention_BT[place].sum()) == length


def test_a_batch_of_blocks_holds_their_rows(folder: Path, tokenizer: Tokenizer) -> None:
    blocks = TrainingRows.open(folder, tokenizer=tokenizer, config=KINDS["blocks"])
    sequences, _ = blocks.take(blocks.first_cursor(SEED), 3)
    assert max(map(len, sequences)) > 1
    batch = blocks.batch(sequences)
    assert batch.tokens_BT.shape[1] <= 128
    assert batch.num_rows == sum(map(len, sequences))
    assert batch.positions_BT is not None
    for place, sequence in enumerate(sequences):
        start = 0
        for index in sequence:
            alone = blocks.batch([(index,)])
            length = alone.num_tokens
            span = slice(start, start + length)
            assert torch.equal(batch.tokens_BT[place, span], alone.tokens_BT[0])
            assert torch.equal(batch.labels_BT[place, span], alone.labels_BT[0])
            assert batch.positions_BT[place, span].tolist() == list(range(length))
            start += length


def test_windows_are_read_from_disk_and_all_else_from_memory(
    folder: Path,
    tokenizer: Tokenizer,
) -> None:
    for kind, config in KINDS.items():
        found = TrainingRows.open(folder / "train.jsonl", tokenizer=tokenizer, config=config)
        assert isinstance(found.rows, RowsOnDisk) == kind.endswith("in windows")
        assert tuple(found.rows) == read_curated(folder / "train.jsonl")
        assert len(found) == NUM_ROWS
        assert found.first_cursor(SEED) == Cursor(
            seed=SEED, num_rows=NUM_ROWS, window_rows=config.shuffle_window_rows
        )


def test_a_row_that_is_too_long_stops_the_run(rows: TrainingRows) -> None:
    for packing in ("rows", "blocks"):
        short = replace(rows, max_tokens=8, packing=packing)
        with pytest.raises(DataError, match="max_tokens"):
            short.batch([(0,)])
    with pytest.raises(DataError, match="max_tokens"):
        short.take(short.first_cursor(SEED), 1)


def test_a_row_is_encoded_once_an_epoch_by_who_trains_on_all(
    folder: Path,
    tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = TrainingRows.open(folder, tokenizer=tokenizer, config=KINDS["blocks in windows"])
    times: Counter[int] = Counter()
    encode = rows._encoded._encode

    def counted(index: int) -> Encoded:
        times[index] += 1
        return encode(index)

    monkeypatch.setattr(rows._encoded, "_encode", counted)
    cursor = rows.first_cursor(SEED)
    steps = 0
    while cursor.epoch < 2:
        sequences, cursor = rows.take(cursor, 3)
        rows.batch(sequences)
        steps += 1
        # Of each step but its last look ahead nothing is kept.
        assert len(rows._encoded._kept) <= sum(map(len, sequences)) + 1
    taken = cursor.epoch * NUM_ROWS + cursor.position
    assert times.total() <= taken + steps
    assert min(times.values()) == 2


# --- stopped and gone on with ---------------------------------------------------------


@dataclass(kw_only=True)
class Launch:
    """One launch of a run, on some number of ranks, each with the data open by itself."""

    ranks: list[TrainingRows]
    batch_rows: int
    micro_batch_rows: int | None
    cursor: Cursor

    @classmethod
    def of(  # noqa: PLR0913 -- all that a launch is told
        cls,
        folder: Path,
        tokenizer: Tokenizer,
        config: DataConfig,
        *,
        world_size: int,
        batch_rows: int,
        micro_batch_rows: int | None = None,
        saved: bytes | None = None,
    ) -> Launch:
        ranks = [
            TrainingRows.open(folder, tokenizer=tokenizer, config=config) for _ in range(world_size)
        ]
        start = ranks[0].first_cursor(SEED)
        cursor = start if saved is None else Cursor.from_json(json.loads(saved), start=start)
        return cls(
            ranks=ranks, batch_rows=batch_rows, micro_batch_rows=micro_batch_rows, cursor=cursor
        )

    def step(self) -> list[list[Sequences]]:
        """Take an optimizer step; return the micro-batches of each rank."""
        parts: list[list[Sequences]] = []
        after = set()
        for rank, rows in enumerate(self.ranks):
            sequences, cursor = rows.take(self.cursor, self.batch_rows)
            part = rank_part(sequences, rank=rank, world_size=len(self.ranks))
            parts.append(micro_parts(part, self.micro_batch_rows))
            after.add(cursor)
        (self.cursor,) = after  # every rank stands at the same place
        return parts

    def save(self) -> bytes:
        return canonical.dumps(self.cursor.to_json())


def ids_of(launch: Launch, parts: list[list[Sequences]]) -> list[str]:
    """Return the ids of the rows in the order of ranks and micro-batches."""
    return [
        rows.rows[index].id
        for rows, micros in zip(launch.ranks, parts, strict=True)
        for micro in micros
        for sequence in micro
        for index in sequence
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world_size", [2, 8])
def test_four_ranks_become_two_or_eight_and_no_row_is_lost_or_doubled(
    folder: Path,
    tokenizer: Tokenizer,
    kind: str,
    world_size: int,
) -> None:
    config = KINDS[kind]

    def launch(world_size: int, saved: bytes | None = None) -> Launch:
        return Launch.of(
            folder, tokenizer, config, world_size=world_size, batch_rows=8, saved=saved
        )

    never_stopped = launch(1)
    expected: list[str] = []
    while never_stopped.cursor.epoch < 3:
        expected += ids_of(never_stopped, never_stopped.step())

    stopped = launch(4)
    found = ids_of(stopped, stopped.step())
    resumed = launch(world_size, stopped.save())
    while resumed.cursor.epoch < 3:
        found += ids_of(resumed, resumed.step())

    assert found == expected
    assert resumed.cursor == never_stopped.cursor
    all_ids = {row.id for row in read_curated(folder / "train.jsonl")}
    assert len(all_ids) == NUM_ROWS
    for epoch in range(3):
        assert set(found[epoch * NUM_ROWS :][:NUM_ROWS]) == all_ids  # each of 30 ids once


BATCHES_PER_EPOCH, ACCUMULATION, STEPS = 12, 4, 2


@pytest.mark.parametrize("resumed_on", [1, 2, 4])
@pytest.mark.parametrize("stopped_on", [1, 2, 4])
def test_the_next_micro_batch_is_the_one_after_those_that_were_accumulated(
    tmp_path: Path,
    tokenizer: Tokenizer,
    stopped_on: int,
    resumed_on: int,
) -> None:
    micro_rows = 4  # of all ranks together
    num_rows = BATCHES_PER_EPOCH * micro_rows
    make_chat_rows(tmp_path / "train.jsonl", num_rows)

    def launch(world_size: int, saved: bytes | None = None) -> Launch:
        return Launch.of(
            tmp_path,
            tokenizer,
            config_of(),
            world_size=world_size,
            batch_rows=ACCUMULATION * micro_rows,
            micro_batch_rows=micro_rows // world_size,
            saved=saved,
        )

    stopped = launch(stopped_on)
    consumed = 0
    for _ in range(STEPS):
        parts = stopped.step()
        assert {len(micros) for micros in parts} == {ACCUMULATION}
        consumed += ACCUMULATION
    assert consumed == 8
    resumed = launch(resumed_on, stopped.save())
    assert resumed.cursor.position // micro_rows == 8  # by micro-batches, not by steps, which are 2

    parts = resumed.step()
    assert {len(micros) for micros in parts} == {ACCUMULATION}
    rows = [row for micros in parts for micro in micros for (row,) in micro]
    assert rows == order(SEED, 0, num_rows)[8 * micro_rows :]
    assert (resumed.cursor.epoch, resumed.cursor.position) == (1, 0)


@pytest.mark.parametrize("window_rows", [1, 7, 8, 20, 30, 100])
def test_a_shuffled_stream_stopped_at_row_20_loses_and_repeats_nothing(
    folder: Path,
    tokenizer: Tokenizer,
    window_rows: int,
) -> None:
    config = config_of(shuffle_window_rows=window_rows)

    def launch(saved: bytes | None = None) -> Launch:
        return Launch.of(folder, tokenizer, config, world_size=1, batch_rows=5, saved=saved)

    stopped = launch()
    found: list[str] = []
    while len(found) < 20:
        found += ids_of(stopped, stopped.step())
    # Several times inside one epoch, at its border and after it.
    for _ in range(8):
        resumed = launch(stopped.save())
        found += ids_of(resumed, resumed.step())
        stopped = resumed
    times = Counter(found[:NUM_ROWS])
    assert len(times) == NUM_ROWS
    assert set(times.values()) == {1}
    assert set(Counter(found[NUM_ROWS:]).values()) == {1}
    assert len(found) == 60


def test_a_cursor_of_other_data_is_refused(
    rows: TrainingRows, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fewer = replace(rows, rows=rows.rows[:29])
    streamed = replace(rows, rows=RowsOnDisk(folder / "train.jsonl"), window_rows=8)
    saved = {
        "num_rows 30, .*got 29": fewer.first_cursor(SEED).to_json(),
        "window_rows None, .*got 8": streamed.first_cursor(SEED).to_json(),
        "seed 5, .*got 6": rows.first_cursor(6).to_json(),
    }
    monkeypatch.setattr(cursor_module, "order_digest", None)  # called, it would raise
    for reason, document in saved.items():
        with pytest.raises(FormatError, match=reason):
            Cursor.from_json(document, start=rows.first_cursor(SEED))
