from __future__ import annotations

from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from strongroom.data.rows import read_curated
from strongroom.errors import DataError
from strongroom.model.build import tokenizer_from
from strongroom.training.batches import TrainingRows, rank_part
from tests.support.tiny_model import make_chat_rows, make_tiny_model


@given(world_size=st.integers(1, 8), per_rank=st.integers(1, 5))
def test_the_parts_of_all_ranks_are_the_global_batch_in_order(
    world_size: int, per_rank: int
) -> None:
    indices = list(range(world_size * per_rank))
    parts = [rank_part(indices, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert {len(part) for part in parts} == {per_rank}
    assert [index for part in parts for index in part] == indices


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> TrainingRows:
    folder: Path = tmp_path_factory.mktemp("rows")
    return TrainingRows(
        rows=read_curated(make_chat_rows(folder / "rows.jsonl", 12)),
        tokenizer=tokenizer_from(make_tiny_model(folder / "model")),
        max_tokens=128,
    )


def test_a_batch_holds_the_rows_asked_for(rows: TrainingRows) -> None:
    together = rows.batch([5, 0, 7])
    for place, index in enumerate([5, 0, 7]):
        alone = rows.batch([index])
        length = int(alone.attention_BT.sum())
        assert torch.equal(together.tokens_BT[place, :length], alone.tokens_BT[0, :length])
        assert torch.equal(together.labels_BT[place, :length], alone.labels_BT[0, :length])
        assert int(together.attention_BT[place].sum()) == length


def test_a_row_that_is_too_long_stops_the_run(rows: TrainingRows) -> None:
    short = TrainingRows(rows=rows.rows, tokenizer=rows.tokenizer, max_tokens=8)
    with pytest.raises(DataError, match="max_tokens"):
        short.batch([0])
