from __future__ import annotations

import gzip
import json
import os
import shutil
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from strongroom.data.cursor import Cursor, take
from strongroom.data.rows import Row, read_curated
from strongroom.data.streaming import RowsOnDisk
from strongroom.errors import DataError
from tests.support.tiny_model import make_chat_rows


def curated(path: Path, num_rows: int) -> Path:
    """Write rows as `curate` writes them, ids and all."""
    rows = read_curated(make_chat_rows(path.with_name("source.jsonl"), num_rows))
    lines = [json.dumps(row.to_json(), ensure_ascii=False) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="utf-8")
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return curated(tmp_path / "train.jsonl", 30)


def test_rows_on_disk_are_the_rows_in_memory(path: Path) -> None:
    in_memory = read_curated(path)
    on_disk = RowsOnDisk(path)
    assert len(on_disk) == 30
    assert tuple(on_disk) == in_memory
    assert [on_disk[index] for index in (29, 0, -1, 7)] == [in_memory[i] for i in (29, 0, -1, 7)]
    assert tuple(on_disk[4:20:3]) == in_memory[4:20:3]
    for beyond in (30, -31):
        with pytest.raises(IndexError):
            on_disk[beyond]


def without_last_newline(data: bytes) -> bytes:
    return data.removesuffix(b"\n")


def with_windows_ends(data: bytes) -> bytes:
    return b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n  \r\n\r\n")


@pytest.mark.parametrize("spelt", [without_last_newline, with_windows_ends])
def test_marks_and_blank_lines_are_passed_over_as_in_memory(
    path: Path, spelt: Callable[[bytes], bytes]
) -> None:
    path.write_bytes(spelt(path.read_bytes()))
    assert tuple(RowsOnDisk(path)) == read_curated(path)


def test_a_file_without_rows_has_none(tmp_path: Path) -> None:
    for data in (b"", b"\n \n", b"\xef\xbb\xbf"):
        (tmp_path / "empty.jsonl").write_bytes(data)
        assert len(RowsOnDisk(tmp_path / "empty.jsonl")) == 0


BROKEN = [
    (b"not json\n", "is not JSON"),
    (b"\xff\xfe\n", "is not UTF-8"),
    (b"[1]\n", "expected an object"),
    (b'{"messages": [{"role": "user", "content": "?"}]}\n', "the assistant last"),
]


@pytest.mark.parametrize(("line", "reason"), BROKEN)
def test_a_broken_row_is_judged_as_in_memory_and_hides_no_other(
    path: Path, line: bytes, reason: str
) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    lines[3:4] = [b"\n", line]
    path.write_bytes(b"".join(lines))
    on_disk = RowsOnDisk(path)
    with pytest.raises(DataError, match=reason) as found:
        on_disk[3]
    with pytest.raises(DataError) as expected:
        read_curated(path)
    assert str(found.value) == str(expected.value)
    assert "row 5: " in str(found.value)
    assert on_disk[4] == RowsOnDisk(path)[4]


def test_a_row_that_is_not_the_one_its_id_names_is_refused(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace("güneşli".encode(), b"sisli", 1))
    on_disk = RowsOnDisk(path)
    with pytest.raises(DataError, match="the row was changed"):
        list(on_disk)


def test_a_file_that_was_cut_short_since_is_noticed(path: Path) -> None:
    on_disk = RowsOnDisk(path)
    os.truncate(path, path.stat().st_size - 20)
    with pytest.raises(DataError, match="is not JSON"):
        on_disk[29]


def test_a_file_that_is_put_in_its_place_changes_nothing(path: Path) -> None:
    expected = read_curated(path)
    on_disk = RowsOnDisk(path)
    other = path.with_name("other.jsonl")
    other.write_bytes(b"{}\n" * 100)
    other.replace(path)
    assert tuple(on_disk) == expected


def test_a_row_that_comes_in_pieces_is_put_together(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = read_curated(path)
    read = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, place: read(fd, min(size, 7), place))
    assert tuple(RowsOnDisk(path)) == expected


@pytest.mark.parametrize("how", ["gzip", "parquet"])
def test_a_file_whose_rows_have_no_place_of_their_own_is_refused(path: Path, how: str) -> None:
    data = path.read_bytes()
    path.write_bytes(gzip.compress(data) if how == "gzip" else b"PAR1" + data)
    with pytest.raises(DataError, match="expected plain JSON Lines"):
        RowsOnDisk(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for missing in (tmp_path / "missing.jsonl", tmp_path):
        with pytest.raises(DataError, match="cannot be read"):
            RowsOnDisk(missing)


def test_rows_stay_on_disk(tmp_path: Path) -> None:
    num_rows = 20_000
    path = tmp_path / "many.jsonl"
    line = json.dumps({"messages": [{"role": "user", "content": "?" * 400}] * 2}) + "\n"
    path.write_text(line * num_rows, encoding="utf-8")
    tracemalloc.start()
    try:
        on_disk = RowsOnDisk(path)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(on_disk) == num_rows
    assert peak_bytes < 24 * num_rows  # the index, once while it grows, against 800 bytes a row


def test_a_window_is_read_where_its_rows_lie(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_disk = RowsOnDisk(path)
    spans: list[tuple[int, int]] = []
    read = on_disk._read

    def noted(start: int, end: int) -> bytes:
        spans.append((start, end))
        return read(start, end)

    monkeypatch.setattr(on_disk, "_read", noted)
    cursor = Cursor(seed=1, num_rows=30, window_rows=6)
    for _ in range(5):
        spans.clear()
        rows, cursor = take(cursor, 6)
        for row in rows:
            on_disk[row]
        begin, end = min(spans)[0], max(spans)[1]
        assert end - begin == sum(e - s for s, e in spans)  # side by side, nothing twice


def rows_of(path: Path) -> list[Row]:
    return list(RowsOnDisk(path))


def test_every_rank_and_thread_may_read_the_file_at_once(path: Path) -> None:
    expected = list(read_curated(path))
    shared = RowsOnDisk(path)
    with ThreadPoolExecutor(4) as threads:
        for found in threads.map(lambda _: [shared[i] for i in range(30)], range(8)):
            assert found == expected
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:
        assert list(processes.map(rows_of, [path] * 2)) == [expected] * 2


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts descriptors by /proc")
def test_the_file_is_closed_when_nobody_needs_its_rows(path: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copy(path, tmp_path / "copy.jsonl"))

    def times_open() -> int:
        descriptors = Path("/proc/self/fd").iterdir()
        return sum(fd.is_symlink() and fd.readlink() == copy for fd in descriptors)

    on_disk = RowsOnDisk(copy)
    assert times_open() == 1
    del on_disk
    assert times_open() == 0
    path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(DataError):
        RowsOnDisk(path)
