from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from strongroom.data.packing import Encoded
from strongroom.errors import DataError
from strongroom.evaluation.metrics import held_out_metrics


def row(length: int) -> Encoded:
    return Encoded(token_ids=list(range(length)), trained=[False] + [True] * (length - 1))


def one_nat_a_token(rows: Sequence[Encoded]) -> tuple[float, int]:
    count = sum(sum(item.trained) for item in rows)
    return float(count), count


def test_loss_is_per_token_and_bits_are_per_byte() -> None:
    metrics = held_out_metrics([row(5), row(3)], 12, one_nat_a_token, batch_rows=1)
    assert (metrics.num_rows, metrics.num_tokens) == (2, 6)
    assert metrics.loss == pytest.approx(1.0)
    assert metrics.bits_per_byte == pytest.approx(6 / math.log(2) / 12)


def test_every_row_is_scored_once_whatever_the_batch_size() -> None:
    rows = [row(length) for length in (9, 2, 7, 4, 3)]
    for batch_rows in (1, 2, 5, 8):
        assert held_out_metrics(rows, 1, one_nat_a_token, batch_rows=batch_rows).num_tokens == 20


def test_nothing_to_score_is_an_error() -> None:
    with pytest.raises(DataError, match="no completion to score"):
        held_out_metrics([], 0, one_nat_a_token)
