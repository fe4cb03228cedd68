"""Curate: from sources to the rows that are trained on and the rows that are held out.

The steps, in order: read, drop broken rows (too many stop the run), drop exact duplicates, drop
rows that are too long, split. Invariant: the files are a pure function of the configuration and
the sources' rows, byte for byte, and every row that was read is in a file or counted as dropped.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from strongroom import canonical
from strongroom.data.config import DataConfig, SourceConfig
from strongroom.data.outputs import write_whole
from strongroom.data.rows import ReadResult, Row, RowFault
from strongroom.data.sources import load_source
from strongroom.data.split import choose_held_out
from strongroom.errors import DataError
from strongroom.names import Digest
from strongroom.parsing import STRICT, parse, to_json

logger = logging.getLogger(__name__)

FORMAT = "strongroom.curation/1"
TRAIN_FILE = "train.jsonl"
HELD_OUT_FILE = "held_out.jsonl"
REPORT_FILE = "curation.json"

_MAX_FAULTS = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceReport:
    """What became of the rows of one source; `broken` names the first of the broken ones."""

    __pydantic_config__ = STRICT

    uri: str
    num_read: int
    num_broken: int
    num_duplicates: int
    num_too_long: int
    num_train: int
    num_held_out: int
    broken: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CurationReport:
    """What became of every row that was read.

    Attributes:
        num_with_control_text: rows in which somebody's text spells a control token; it is
            encoded as ordinary text.
        train: digest of `train.jsonl`.
        held_out: digest of `held_out.jsonl`.
    """

    __pydantic_config__ = STRICT

    format: str
    sources: tuple[SourceReport, ...]
    num_train: int
    num_held_out: int
    num_with_control_text: int
    train: str
    held_out: str

    def to_bytes(self) -> bytes:
        """Return the canonical bytes: what `curation.json` holds."""
        return canonical.dumps(to_json(self))

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str) -> CurationReport:
        """Read `curation.json`; `where` names it in errors."""
        return parse(cls, canonical.loads(data, what=where), source=where)


def curate(  # noqa: PLR0913 -- everything that decides the outcome is given, nothing is ambient
    config: DataConfig,
    *,
    base_dir: Path,
    cache: Path,
    count_tokens: Callable[[Row], int] | None,
    out: Path,
    control_tokens: Sequence[str] = (),
) -> CurationReport:
    """Write `train.jsonl`, `held_out.jsonl` and, last, `curation.json` into `out`.

    Args:
        config: sources, limits, and the seed of the split.
        base_dir: the folder that relative paths of sources are relative to.
        cache: a folder for what is fetched or converted.
        count_tokens: the tokens of a row once rendered; a row that it refuses by a DataError is
            broken. None keeps rows of any length.
        out: the folder to write into; made where it does not exist.
        control_tokens: the tokenizer's control tokens, to count rows whose text spells one.

    Raises:
        DataError: a source is missing, empty or too broken (all of them are named), or too few
            rows are left to split.
        StorageError: the files cannot be written.
    """
    lengths: dict[str, int] = {}
    read = _read_all(config, base_dir, cache, count_tokens, lengths)
    rows, sources, dropped = _keep(read, lengths, config.max_tokens)
    if not rows:
        num_read = sum(len(result.rows) for result in read)
        raise DataError(
            "data.sources",
            [
                f"none of {num_read} rows is left: all are longer than {config.max_tokens} tokens; "
                "raise data.max_tokens"
            ],
        )
    held_out = choose_held_out(
        rows,
        sources,
        fraction=config.held_out_fraction,
        max_rows=config.max_held_out_rows,
        seed=config.split_seed,
    )
    held = set(held_out)
    train_lines = _lines(row for index, row in enumerate(rows) if index not in held)
    held_out_lines = _lines(rows[index] for index in held_out)
    kept = Counter((source, index in held) for index, source in enumerate(sources))
    report = CurationReport(
        format=FORMAT,
        sources=tuple(
            SourceReport(
                uri=source.uri,
                num_read=len(result.rows) + len(result.faults),
                num_broken=len(result.faults),
                num_duplicates=dropped[index, "duplicate"],
                num_too_long=dropped[index, "too long"],
                num_train=kept[index, False],
                num_held_out=kept[index, True],
                broken=_shown(result),
                notes=result.notes,
            )
            for index, (source, result) in enumerate(zip(config.sources, read, strict=True))
        ),
        num_train=len(rows) - len(held_out),
        num_held_out=len(held_out),
        num_with_control_text=sum(_spells_any(row, control_tokens) for row in rows),
        train=str(Digest.of(train_lines)),
        held_out=str(Digest.of(held_out_lines)),
    )
    # The report vouches for the two others, so it goes first and comes last.
    (out / REPORT_FILE).unlink(missing_ok=True)
    for name, data in (
        (TRAIN_FILE, train_lines),
        (HELD_OUT_FILE, held_out_lines),
        (REPORT_FILE, report.to_bytes()),
    ):
        write_whole(out / name, partial(Path.write_bytes, data=data))
    logger.info(
        "dataset curated train=%d held_out=%d broken=%d duplicates=%d too_long=%d out=%s",
        report.num_train,
        report.num_held_out,
        sum(source.num_broken for source in report.sources),
        sum(source.num_duplicates for source in report.sources),
        sum(source.num_too_long for source in report.sources),
        out,
    )
    return report


def _read_all(
    config: DataConfig,
    base_dir: Path,
    cache: Path,
    count_tokens: Callable[[Row], int] | None,
    lengths: dict[str, int],
) -> list[ReadResult]:
    read: list[ReadResult] = []
    faults: list[str] = []
    for source in config.sources:
        try:
            result = load_source(source, base_dir=base_dir, cache=cache)
            if count_tokens is not None:
                result = _measured(result, count_tokens, lengths)
        except DataError as error:
            faults += [f"{error.source}: {fault}" for fault in error.faults]
        else:
            read.append(result)
            faults += _stopping_faults(source, result, config.max_fault_fraction)
    if faults:
        raise DataError("data.sources", faults)
    return read


def _measured(
    result: ReadResult, count_tokens: Callable[[Row], int], lengths: dict[str, int]
) -> ReadResult:
    """Enter the length of every row into `lengths`, by id; what cannot be rendered is a fault."""
    refused: dict[int, RowFault] = {}
    for row_number, row in zip(result.row_numbers, result.rows, strict=True):
        try:
            if row.id not in lengths:
                lengths[row.id] = count_tokens(row)
        except DataError as error:
            refused[row_number] = RowFault(row_number=row_number, reason="; ".join(error.faults))
    if not refused:
        return result
    numbered = zip(result.row_numbers, result.rows, strict=True)
    kept = [(number, row) for number, row in numbered if number not in refused]
    faults = sorted([*result.faults, *refused.values()], key=lambda fault: fault.row_number)
    return replace(
        result,
        rows=tuple(row for _, row in kept),
        row_numbers=tuple(number for number, _ in kept),
        faults=tuple(faults),
    )


def _stopping_faults(source: SourceConfig, result: ReadResult, max_fraction: float) -> list[str]:
    num_broken, num_read = len(result.faults), len(result.faults) + len(result.rows)
    if not num_read:
        return [f"{source.uri}: holds no row at all"]
    if num_broken <= max_fraction * num_read:
        return []
    allowed = f"at most {max_fraction:.2%} may be (data.max_fault_fraction)"
    return [
        f"{source.uri}: {num_broken} of {num_read} rows are broken, {allowed}",
        *(f"{source.uri}: {fault}" for fault in _shown(result)),
    ]


def _shown(result: ReadResult) -> tuple[str, ...]:
    shown = [str(fault) for fault in result.faults[:_MAX_FAULTS]]
    if more := len(result.faults) - len(shown):
        shown.append(f"and {more} more")
    return tuple(shown)


def _keep(
    read: Sequence[ReadResult], lengths: dict[str, int], max_tokens: int
) -> tuple[list[Row], list[int], Counter[tuple[int, str]]]:
    rows: list[Row] = []
    sources: list[int] = []
    dropped: Counter[tuple[int, str]] = Counter()
    seen: set[str] = set()
    for source, result in enumerate(read):
        for row in result.rows:
            if row.id in seen:
                dropped[source, "duplicate"] += 1
            elif lengths.get(row.id, 0) > max_tokens:
                dropped[source, "too long"] += 1
            else:
                rows.append(row)
                sources.append(source)
            seen.add(row.id)
    return rows, sources, dropped


def _spells_any(row: Row, control_tokens: Sequence[str]) -> bool:
    return any(token in message.content for token in control_tokens for message in row.messages)


def _lines(rows: Iterable[Row]) -> bytes:
    return b"".join(canonical.dumps(row.to_json()) + b"\n" for row in rows)
