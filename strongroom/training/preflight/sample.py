"""How long rows are, from a sample of them: quick, whatever the size of the data.

Of JSON Lines some windows are read, spread over the file; whole lines of them are judged as rows
are everywhere (`strongroom.data.rows`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from strongroom.data.config import DataConfig, SourceConfig
from strongroom.data.rows import GZIP, PARQUET, Row, read_rows
from strongroom.data.sources import load_source
from strongroom.errors import DataError
from strongroom.training.preflight.facts import DataFacts
from strongroom.training.preflight.tokenizer import CountTokens

MAX_ROWS = 200
WINDOWS = 4
WINDOW_BYTES = 64 << 10
WHOLE_BYTES = 8 << 20
"""A file that is not JSON Lines is read whole up to this size, and not at all above."""

Read = Callable[[int, int], bytes]
"""Returns so many bytes from an offset on."""


def measure_rows(
    rows: Sequence[Row], count_tokens: CountTokens, max_tokens: int, *, num_rows: int | None
) -> DataFacts | None:
    """Return the lengths of a sample of `rows` that can be rendered and fit; None without any."""
    step = -(-len(rows) // MAX_ROWS) or 1
    lengths = []
    for row in rows[::step]:
        try:
            length = count_tokens(row)
        except DataError:  # broken, and dropped before training
            continue
        if length <= max_tokens:
            lengths.append(length)
    if not lengths:
        return None
    return DataFacts(
        num_rows=num_rows,
        sampled_rows=len(lengths),
        mean_tokens=sum(lengths) / len(lengths),
        longest_tokens=max(lengths),
    )


def sample_lines(num_bytes: int, read: Read, source: SourceConfig) -> tuple[Row, ...]:
    """Return the rows in some windows of a file of JSON Lines of `num_bytes` bytes."""
    if num_bytes <= WINDOWS * WINDOW_BYTES:
        return _rows(read(0, num_bytes), source)
    rows: list[Row] = []
    for number in range(WINDOWS):
        offset = number * (num_bytes - WINDOW_BYTES) // (WINDOWS - 1)
        window = read(offset, WINDOW_BYTES)
        # The first and the last line of a window are seldom whole.
        lines = window.split(b"\n")[0 if offset == 0 else 1 : -1]
        rows += _rows(b"\n".join(lines), source)
    return tuple(rows)


def sample_sources(
    config: DataConfig, *, base_dir: Path, cache: Path, count_tokens: CountTokens
) -> DataFacts | None:
    """Return the lengths of rows of the sources, as far as they are at hand; nothing is fetched.

    None where a source is not at hand: what the others hold would say little of all.

    Raises:
        DataError: a source is missing, or broken as a whole.
    """
    rows: list[Row] = []
    for source in config.sources:
        found = _source_rows(source, base_dir=base_dir, cache=cache)
        if found is None:
            return None
        rows += found
    return measure_rows(rows, count_tokens, config.max_tokens, num_rows=None)


def _source_rows(source: SourceConfig, *, base_dir: Path, cache: Path) -> tuple[Row, ...] | None:
    if source.uri.startswith("hub:"):
        return None
    path = base_dir / source.uri
    if source.uri.startswith("pypi:") or not path.is_file():
        return load_source(source, base_dir=base_dir, cache=cache).rows
    num_bytes = path.stat().st_size
    with path.open("rb") as file:
        is_packed = file.read(len(PARQUET)).startswith((GZIP, PARQUET))

        def read(offset: int, size: int) -> bytes:
            file.seek(offset)
            return file.read(size)

        if not is_packed:
            return sample_lines(num_bytes, read, source)
    return read_rows(path, source).rows if num_bytes <= WHOLE_BYTES else None


def _rows(lines: bytes, source: SourceConfig) -> tuple[Row, ...]:
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
        file.write(lines)
        file.flush()
        return read_rows(Path(file.name), source).rows
