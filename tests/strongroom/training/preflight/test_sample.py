from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from strongroom.data.config import DataConfig, SourceConfig
from strongroom.data.rows import Row
from strongroom.errors import DataError
from strongroom.training.preflight import sample
from strongroom.training.preflight.sample import (
    MAX_ROWS,
    WINDOW_BYTES,
    WINDOWS,
    measure_rows,
    sample_lines,
    sample_sources,
)
from tests.support.tiny_model import make_chat_rows

SOURCE = SourceConfig(uri="rows.jsonl")


def letters(row: Row) -> int:
    """Count letters instead of tokens."""
    return sum(len(message.content) for message in row.messages)


def measured(tmp_path: Path, *uris: str, max_tokens: int = 512) -> object:
    config = DataConfig(sources=tuple(SourceConfig(uri=uri) for uri in uris), max_tokens=max_tokens)
    return sample_sources(config, base_dir=tmp_path, cache=tmp_path / "cache", count_tokens=letters)


def test_a_small_file_is_read_whole(tmp_path: Path) -> None:
    data = make_chat_rows(tmp_path / "rows.jsonl", 40).read_bytes()
    rows = sample_lines(len(data), lambda offset, size: data[offset : offset + size], SOURCE)
    assert len(rows) == 40
    facts = measure_rows(rows, letters, 512, num_rows=7)
    assert facts is not None
    lengths = [letters(row) for row in rows]
    assert (facts.num_rows, facts.sampled_rows) == (7, 40)
    assert facts.mean_tokens == pytest.approx(sum(lengths) / 40)
    assert facts.longest_tokens == max(lengths)


def test_of_a_large_file_windows_over_all_of_it_are_read_and_no_more() -> None:
    def line(number: int) -> bytes:
        turns = [{"role": "user", "content": f"n {number}"}, {"role": "assistant", "content": "x"}]
        return json.dumps({"messages": turns}).encode() + b"\n"

    data = b"".join(map(line, range(20_000)))
    asked: list[tuple[int, int]] = []

    def read(offset: int, size: int) -> bytes:
        asked.append((offset, size))
        return data[offset : offset + size]

    rows = sample_lines(len(data), read, SOURCE)
    numbers = [int(row.messages[0].content.split()[1]) for row in rows]
    assert sum(size for _, size in asked) == WINDOWS * WINDOW_BYTES
    assert numbers[0] == 0
    assert numbers[-1] > 19_900
    assert any(5_000 < number < 9_000 for number in numbers)
    assert len(set(numbers)) == len(numbers)
    facts = measure_rows(rows, letters, 512, num_rows=None)
    assert facts is not None
    assert facts.sampled_rows <= MAX_ROWS


def test_rows_that_are_broken_or_too_long_are_left_out(tmp_path: Path) -> None:
    path = make_chat_rows(tmp_path / "rows.jsonl", 8)
    path.write_text(path.read_text() + "no json\n")
    data = path.read_bytes()
    rows = sample_lines(len(data), lambda offset, size: data[offset : offset + size], SOURCE)

    def refusing(row: Row) -> int:
        if row == rows[0]:
            raise DataError("row", ["cannot be rendered"])
        return letters(row)

    longest = max(map(letters, rows))
    facts = measure_rows(rows, refusing, longest - 1, num_rows=None)
    assert facts is not None
    assert facts.sampled_rows < 7
    assert facts.longest_tokens < longest
    fitting = measure_rows(rows, letters, longest, num_rows=None)
    assert fitting is not None
    assert fitting.longest_tokens == longest
    assert measure_rows(rows, letters, 1, num_rows=None) is None
    assert measure_rows((), letters, 512, num_rows=None) is None


def test_sources_of_every_format_are_sampled(tmp_path: Path) -> None:
    import pyarrow.parquet as pq
    from pyarrow import Table

    path = make_chat_rows(tmp_path / "rows.jsonl", 12)
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    pq.write_table(Table.from_pylist(records), tmp_path / "rows.parquet")
    plain = measured(tmp_path, "rows.jsonl")
    assert plain is not None
    assert measured(tmp_path, "rows.jsonl.gz") == plain
    assert measured(tmp_path, "rows.parquet") == plain


def test_nothing_is_said_where_a_source_is_not_at_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_chat_rows(tmp_path / "rows.jsonl", 12)
    assert measured(tmp_path, "rows.jsonl", "hub:some/where:train") is None
    packed = gzip.compress((tmp_path / "rows.jsonl").read_bytes())
    (tmp_path / "rows.gz").write_bytes(packed)
    monkeypatch.setattr(sample, "WHOLE_BYTES", len(packed) - 1)
    assert measured(tmp_path, "rows.gz") is None


def test_a_source_that_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        measured(tmp_path, "none.jsonl")
