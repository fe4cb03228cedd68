"""Rows: one conversation each, read from JSON Lines or Parquet, every row judged by itself.

Invariant: a row that comes out is whole: roles alternate, every text is NFC and not blank, the last
word is the assistant's. A row that cannot be is a `RowFault` with its number and a reason; it never
hides the rows after it, and its text never stands in the reason. What a file is, is read from its
first bytes and not from its name.
"""

from __future__ import annotations

import gzip
import json
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from strongroom import canonical
from strongroom.canonical import JsonObject
from strongroom.data.config import SourceConfig
from strongroom.errors import DataError
from strongroom.names import Digest

Role = Literal["system", "user", "assistant"]

BYTE_ORDER_MARK = "\ufeff"
UTF8_MARK = b"\xef\xbb\xbf"
GZIP = b"\x1f\x8b"
PARQUET = b"PAR1"
_OWN_FIELDS = frozenset({"id", "language"})
_MAX_NAMES = 8
_MAX_NAME_LENGTH = 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Role
    content: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One conversation: an optional system message, then user and assistant in turn.

    Attributes:
        id: the digest of the messages, as text; the language does not count.
    """

    id: str
    messages: tuple[Message, ...]
    language: str | None

    @classmethod
    def of(cls, messages: tuple[Message, ...], language: str | None) -> Row:
        """Return the row of these messages, with its id."""
        return cls(id=str(messages_digest(messages)), messages=messages, language=language)

    def to_json(self) -> JsonObject:
        """Return it as one line of a curated file holds it."""
        return {"id": self.id, "language": self.language, "messages": _plain(self.messages)}


@dataclass(frozen=True, kw_only=True, slots=True)
class RowFault:
    """Why one row cannot be used; rows are numbered from 1, by line in a JSON Lines file."""

    row_number: int
    reason: str

    def __str__(self) -> str:
        return f"row {self.row_number}: {self.reason}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadResult:
    """What a source holds: usable rows with their numbers, faults, and what was cleaned up."""

    rows: tuple[Row, ...]
    row_numbers: tuple[int, ...]
    faults: tuple[RowFault, ...]
    notes: tuple[str, ...]


def messages_digest(messages: Iterable[Message]) -> Digest:
    """Digest of the canonical JSON of the messages: what makes two rows duplicates."""
    return canonical.digest({"messages": _plain(messages)})


def read_rows(path: Path, source: SourceConfig) -> ReadResult:
    """Read every row of a file: JSON Lines, the same under gzip, or Parquet.

    Args:
        path: the file.
        source: names the fields of a pair, and the language of rows that do not say.

    Raises:
        DataError: the file is missing, unreadable, or broken as a whole.
    """
    tally = _Tally()
    rows: list[Row] = []
    row_numbers: list[int] = []
    faults: list[RowFault] = []
    try:
        for row_number, record in _records(path, source, tally):
            try:
                rows.append(_row(record, source, tally))
                row_numbers.append(row_number)
            except _RowError as error:
                faults.append(RowFault(row_number=row_number, reason=str(error)))
    except OSError as error:
        raise DataError(str(path), [f"cannot be read: {error.strerror or error}"]) from error
    except (EOFError, zlib.error) as error:
        raise DataError(
            str(path), [f"the gzip stream is broken or cut short ({error}); copy the file anew"]
        ) from error
    return ReadResult(
        rows=tuple(rows),
        row_numbers=tuple(row_numbers),
        faults=tuple(faults),
        notes=tally.notes(),
    )


def read_curated(path: Path) -> tuple[Row, ...]:
    """Read a file that `curate` wrote; a broken row in it is an error.

    Raises:
        DataError: a row is broken, or is not the one its id names.
    """
    result = read_rows(path, SourceConfig(uri=str(path)))
    if result.faults:
        raise DataError(str(path), [str(fault) for fault in result.faults])
    return result.rows


def curated_row(line: bytes, source: str, *, row_number: Callable[[], int]) -> Row:
    """Read one line of a file that `curate` wrote, as `read_curated` does.

    Args:
        line: one row; white space around it does not matter.
        source: names the file in errors.
        row_number: asked for the number of the row where it is broken.

    Raises:
        DataError: the row is broken, or is not the one its id names.
    """
    try:
        return _row(_json_record(line), SourceConfig(uri=source), _Tally())
    except _RowError as error:
        fault = RowFault(row_number=row_number(), reason=str(error))
        raise DataError(source, [str(fault)]) from error


class _RowError(Exception):
    """The verdict that a row cannot be used."""


@dataclass(kw_only=True, slots=True)
class _Tally:
    """What was cleaned up or left out while a file was read."""

    counts: Counter[str] = field(default_factory=Counter)
    ignored: set[str] = field(default_factory=set)

    def notes(self) -> tuple[str, ...]:
        notes = [f"{what}: {number}" for what, number in sorted(self.counts.items())]
        if self.ignored:
            notes.append(f"fields ignored: {_listed(sorted(self.ignored))}")
        return tuple(notes)


_Record = Mapping[str, Any] | _RowError
"""A row as its file holds it, or why that cannot be read."""


def _plain(messages: Iterable[Message]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in messages]


# --- from bytes to records ------------------------------------------------------------


def _records(path: Path, source: SourceConfig, tally: _Tally) -> Iterator[tuple[int, _Record]]:
    with path.open("rb") as file:
        head = file.read(len(PARQUET))
    if head == PARQUET:
        yield from _parquet_records(path, source, tally)
        return
    # gzip reads every member of the file, not only the first.
    with gzip.open(path, "rb") if head.startswith(GZIP) else path.open("rb") as lines:
        yield from _json_records(cast("BinaryIO", lines), tally)


def _json_records(lines: BinaryIO, tally: _Tally) -> Iterator[tuple[int, _Record]]:
    for row_number, stored in enumerate(lines, start=1):
        line = stored
        if row_number == 1 and line.startswith(UTF8_MARK):
            line = line.removeprefix(UTF8_MARK)
            tally.counts["byte order marks removed"] += 1
        if line.strip():
            yield row_number, _json_record(line)
        else:
            tally.counts["blank lines skipped"] += 1


def _json_record(line: bytes) -> _Record:
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return _RowError(f"is not UTF-8 (byte {error.start + 1} of the line)")
    except json.JSONDecodeError as error:
        return _RowError(f"is not JSON (column {error.colno}: {error.msg})")
    except (ValueError, RecursionError) as error:
        return _RowError(f"is JSON beyond what can be read ({type(error).__name__})")
    if not isinstance(record, dict):
        return _RowError(f"expected an object, got {_kind(record)}")
    return record


def _parquet_records(
    path: Path, source: SourceConfig, tally: _Tally
) -> Iterator[tuple[int, _Record]]:
    # A second of import, for one of three formats.
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted = _wanted_fields(source)
    try:
        file = pq.ParquetFile(path)
        names = file.schema_arrow.names
        if missing := [name for name in wanted if name not in names]:
            raise DataError(
                str(path),
                [f"has no column {_listed(missing)}; its columns are {_listed(names)}"],
            )
        columns = [name for name in names if name in wanted or name in _OWN_FIELDS]
        tally.ignored.update(name for name in names if name not in columns)
        row_number = 0
        # Columns are taken by name; string, large_string and dictionary all come out as str.
        for batch in file.iter_batches(columns=columns):
            for index in range(batch.num_rows):
                row_number += 1
                try:
                    record = {name: batch.column(name)[index].as_py() for name in columns}
                except UnicodeDecodeError:
                    yield row_number, _RowError("is not UTF-8")
                else:
                    yield row_number, record
    except pa.ArrowException as error:
        raise DataError(
            str(path), [f"is not a whole Parquet file ({type(error).__name__}); copy it anew"]
        ) from error


# --- from a record to a row -----------------------------------------------------------


def _wanted_fields(source: SourceConfig) -> tuple[str, ...]:
    if source.prompt_field is None or source.response_field is None:
        return ("messages",)
    return (source.prompt_field, source.response_field)


def _row(record: _Record, source: SourceConfig, tally: _Tally) -> Row:
    if isinstance(record, _RowError):
        raise record
    wanted = _wanted_fields(source)
    if missing := [name for name in wanted if name not in record]:
        raise _RowError(f"has no field {_listed(missing)}; its fields are {_listed(record)}")
    if wanted == ("messages",):
        messages = _messages(record["messages"])
    else:
        prompt, response = (_text(record[name], f"field {_named(name)}") for name in wanted)
        messages = (
            Message(role="user", content=prompt),
            Message(role="assistant", content=response),
        )
    clean = tuple(Message(role=m.role, content=_normal(m.content)) for m in messages)
    for message in clean:
        if not message.content.strip():
            raise _RowError(f"the text of the {message.role} is blank")
    language = source.language or record.get("language")
    row = Row.of(clean, None if language is None else _text(language, "field 'language'"))
    stored_id = record.get("id")
    if isinstance(stored_id, str) and stored_id.startswith(Digest.PREFIX) and stored_id != row.id:
        raise _RowError("its id is not the digest of its messages: the row was changed")
    tally.counts.update(["rows brought to NFC"] if clean != messages else [])
    tally.ignored.update(n for n in record if n not in wanted and n not in _OWN_FIELDS)
    return row


def _messages(value: object) -> tuple[Message, ...]:
    if not isinstance(value, list):
        raise _RowError(f"'messages': expected a list, got {_kind(value)}")
    messages = tuple(_message(item, index) for index, item in enumerate(value))
    turns = [message.role for message in messages]
    if turns[:1] == ["system"]:
        turns = turns[1:]
    if not turns:
        raise _RowError("'messages': expected at least a user and an assistant, got none")
    if turns != ["user", "assistant"] * (len(turns) // 2):
        raise _RowError(
            "'messages': expected user and assistant in turn, the assistant last, got "
            + _listed(turns)
        )
    return messages


def _message(item: object, index: int) -> Message:
    where = f"'messages'[{index}]"
    if not isinstance(item, dict):
        raise _RowError(f"{where}: expected an object, got {_kind(item)}")
    role = item.get("role")
    if role not in ("system", "user", "assistant"):
        got = _named(role) if isinstance(role, str) else _kind(role)
        raise _RowError(f"{where}: expected a role of system, user or assistant, got {got}")
    content = item.get("content")
    if isinstance(content, list):
        content = "".join(_part(part, where) for part in content)
    return Message(role=role, content=_text(content, where))


def _part(part: object, where: str) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        raise _RowError(f"{where}: holds a part that is not text")
    return _text(part.get("text"), where)


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise _RowError(f"{where}: expected text, got {_kind(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _RowError(f"{where}: holds half of a surrogate pair") from error
    return value


def _normal(text: str) -> str:
    return unicodedata.normalize("NFC", text.replace(BYTE_ORDER_MARK, ""))


def _kind(value: object) -> str:
    kinds = {dict: "an object", list: "a list", str: "text", bool: "a truth value"}
    return "null" if value is None else kinds.get(type(value), f"a value of {type(value).__name__}")


def _named(name: str) -> str:
    # Names come from the file: cut short, and repr escapes what cannot be printed or stored.
    return repr(name[:_MAX_NAME_LENGTH])


def _listed(names: Iterable[str]) -> str:
    shown = [_named(name) for name in names]
    more = f" and {len(shown) - _MAX_NAMES} more" if len(shown) > _MAX_NAMES else ""
    return ", ".join(shown[:_MAX_NAMES]) + more
