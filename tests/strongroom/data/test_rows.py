from __future__ import annotations

import gzip
import json
import unicodedata
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strongroom.data.config import SourceConfig
from strongroom.data.rows import (
    Message,
    ReadResult,
    Row,
    messages_digest,
    read_curated,
    read_rows,
)
from strongroom.errors import DataError

PAIRS = SourceConfig(uri="test", prompt_field="soru", response_field="yanıt")
CHAT = SourceConfig(uri="test")


def turns(*contents: str) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": c} for i, c in enumerate(contents)]


def line(*contents: str) -> bytes:
    return json.dumps({"messages": turns(*contents)}, ensure_ascii=False).encode()


THREE = [
    line("Pazar günü kütüphane açık mı?", "Hayır, pazartesi açılıyor."),
    line("Which tree keeps its leaves?", "The pine does."),
    line("Bir saat kaç dakika?", "Altmış."),
]


def read(path: Path, data: bytes, source: SourceConfig = CHAT) -> ReadResult:
    path.write_bytes(data)
    return read_rows(path, source)


def reasons(result: ReadResult) -> dict[int, str]:
    return {fault.row_number: fault.reason for fault in result.faults}


def test_rows_of_messages_keep_their_order_and_text(tmp_path: Path) -> None:
    result = read(tmp_path / "a.jsonl", b"\n".join(THREE))
    assert [row.messages[0].content for row in result.rows] == [
        "Pazar günü kütüphane açık mı?",
        "Which tree keeps its leaves?",
        "Bir saat kaç dakika?",
    ]
    assert not result.faults
    assert not result.notes


def test_pairs_are_read_by_the_names_the_source_gives(tmp_path: Path) -> None:
    data = '{"yanıt": "Kırmızı.", "soru": "Elma ne renk?", "kaynak": 7}\n'.encode()
    result = read(tmp_path / "a.jsonl", data, PAIRS)
    assert result.rows[0].messages == (
        Message(role="user", content="Elma ne renk?"),
        Message(role="assistant", content="Kırmızı."),
    )
    assert result.notes == ("fields ignored: 'kaynak'",)


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".txt"])
def test_bom_crlf_and_blank_lines_change_nothing_but_the_notes(tmp_path: Path, suffix: str) -> None:
    clean = read(tmp_path / "clean.jsonl", b"\n".join(THREE))
    dirty = b"\xef\xbb\xbf" + b"\r\n\r\n   \r\n".join(THREE) + b"\r\n\t\r\n"
    result = read(tmp_path / f"dirty{suffix}", dirty)
    assert result.rows == clean.rows
    assert result.row_numbers == (1, 4, 7)
    assert result.notes == ("blank lines skipped: 5", "byte order marks removed: 1")


@pytest.mark.parametrize("name", ["two.jsonl.gz", "no-suffix", "wrong.parquet"])
def test_gzip_is_known_by_its_bytes_and_every_member_is_read(tmp_path: Path, name: str) -> None:
    data = gzip.compress(THREE[0] + b"\n\n  \n") + gzip.compress(b"\n".join(THREE[1:]))
    result = read(tmp_path / name, data)
    assert len(result.rows) == 3
    assert not result.faults


def test_a_gzip_stream_cut_short_is_an_error_and_not_fewer_rows(tmp_path: Path) -> None:
    data = gzip.compress(b"\n".join(THREE * 50))
    with pytest.raises(DataError, match="cut short"):
        read(tmp_path / "a.jsonl.gz", data[:-20])


def test_a_gzip_stream_with_a_flipped_byte_is_an_error(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(b"\n".join(THREE * 50)))
    data[len(data) // 2] ^= 0x10
    with pytest.raises(DataError):
        read(tmp_path / "a.jsonl.gz", bytes(data))


def test_half_a_surrogate_pair_and_broken_utf8_are_faults_of_their_row_alone(
    tmp_path: Path,
) -> None:
    smile = rb'{"messages": [{"role": "user", "content": "gul: %s"}, '
    smile += rb'{"role": "assistant", "content": "peki"}]}'
    data = b"\n".join(
        [
            smile % rb"\ud83d\ude42",
            smile % rb"\ud83d",
            smile % rb"\ude42",
            smile % rb"\ude42\ud83d",
            smile % b"\xfc",
            THREE[1],
        ]
    )
    result = read(tmp_path / "a.jsonl", data)
    assert [row.messages[0].content for row in result.rows] == [
        "gul: \U0001f642",
        "Which tree keeps its leaves?",
    ]
    assert set(reasons(result)) == {2, 3, 4, 5}
    assert "surrogate" in reasons(result)[3]
    assert reasons(result)[5].startswith("is not UTF-8 (byte ")
    for row in result.rows:
        messages_digest(row.messages)


BROKEN = {
    "role is absent": ([{"content": "a"}, {"role": "assistant", "content": "b"}], "a role of"),
    "role is unknown": ([{"role": "Asistan", "content": "a"}], "'Asistan'"),
    "content is null": (
        [{"role": "user", "content": None}, {"role": "assistant", "content": "b"}],
        "null",
    ),
    "content is a number": ([{"role": "user", "content": 3}], "a value of int"),
    "content is an image": (
        [{"role": "user", "content": [{"type": "image", "url": "x"}]}],
        "not text",
    ),
    "assistant first": (
        [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}],
        "in turn",
    ),
    "no reply": ([{"role": "user", "content": "a"}], "the assistant last"),
    "two users": (
        [{"role": "user", "content": "a"}] * 2 + [{"role": "assistant", "content": "b"}],
        "in turn",
    ),
    "system in the middle": (
        [*turns("a", "b"), {"role": "system", "content": "s"}, *turns("c", "d")],
        "in turn",
    ),
    "system alone": ([{"role": "system", "content": "s"}], "got none"),
    "empty list": ([], "got none"),
    "object for list": ({"role": "user", "content": "a"}, "got an object"),
    "text for list": ("a", "got text"),
    "message is text": (["a"], "got text"),
    "blank text": (turns("a", "  \n"), "assistant is blank"),
    "empty text": (turns("", "b"), "user is blank"),
    "only a byte order mark": (turns("\ufeff", "b"), "user is blank"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_conversation_is_a_fault_and_its_neighbours_are_kept(
    tmp_path: Path, name: str
) -> None:
    messages, reason = BROKEN[name]
    data = b"\n".join([THREE[0], json.dumps({"messages": messages}).encode(), THREE[1]])
    result = read(tmp_path / "a.jsonl", data)
    assert len(result.rows) == 2
    assert list(reasons(result)) == [2]
    assert reason in reasons(result)[2]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"messages": [', "is not JSON (column "),
        (b"[]", "expected an object, got a list"),
        (b"17", "expected an object, got a value of int"),
        (b'{"text": "a"}', "has no field 'messages'; its fields are 'text'"),
        (b"[" * 100_000, "beyond what can be read"),
        (b'{"n": ' + b"9" * 5000 + b"}", "beyond what can be read"),
    ],
)
def test_a_line_that_is_no_row_is_a_fault(tmp_path: Path, data: bytes, reason: str) -> None:
    result = read(tmp_path / "a.jsonl", data + b"\n" + THREE[0])
    assert len(result.rows) == 1
    assert reason in reasons(result)[1]


def test_content_in_parts_is_the_same_row_as_content_in_one(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "Bir saat "}, {"type": "text", "text": "kaç dakika?"}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": "Altmış."}]
    data = THREE[2] + b"\n" + json.dumps({"messages": messages}).encode()
    first, second = read(tmp_path / "a.jsonl", data).rows
    assert first == second


def test_text_comes_out_in_nfc_and_without_stray_byte_order_marks(tmp_path: Path) -> None:
    decomposed = unicodedata.normalize("NFD", "Şişli'de çiğ köfte İyi mi?")
    result = read(tmp_path / "a.jsonl", line("\ufeff" + decomposed, "Evet."))
    assert result.rows[0].messages[0].content == "Şişli'de çiğ köfte İyi mi?"
    assert result.notes == ("rows brought to NFC: 1",)


def test_a_fault_never_repeats_the_text_of_its_row(tmp_path: Path) -> None:
    private = "gizli-not-4711"
    lines = [
        json.dumps({"messages": [{"role": "user", "content": private}]}),
        json.dumps({"messages": [{"role": "user", "content": [private]}]}),
        json.dumps({"messages": private}),
        f'{{"messages": "{private}',
    ]
    result = read(tmp_path / "a.jsonl", "\n".join(lines).encode())
    assert len(result.faults) == 4
    assert all(private not in fault.reason for fault in result.faults)


def test_the_language_is_the_sources_or_else_the_rows(tmp_path: Path) -> None:
    data = json.dumps({"messages": turns("a", "b"), "language": "tr"}).encode()
    assert read(tmp_path / "a.jsonl", data).rows[0].language == "tr"
    said = SourceConfig(uri="test", language="en")
    assert read(tmp_path / "a.jsonl", data, said).rows[0].language == "en"
    wrong = json.dumps({"messages": turns("a", "b"), "language": 3}).encode()
    assert "'language'" in reasons(read(tmp_path / "a.jsonl", wrong))[1]


# --- Parquet --------------------------------------------------------------------------

PARQUET_PAIRS = {"soru": ["Kaç?", "Ne?", None], "yanıt": ["Üç.", "Kalem.", "Yok."]}
PARQUET_IDS = [
    Row.of((Message(role="user", content=q), Message(role="assistant", content=a)), None).id
    for q, a in [("Kaç?", "Üç."), ("Ne?", "Kalem.")]
]


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())]
)
def test_the_width_of_a_parquet_string_makes_no_difference(
    tmp_path: Path, kind: pa.DataType
) -> None:
    columns = {name: pa.array(values).cast(kind) for name, values in PARQUET_PAIRS.items()}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    result = read_rows(tmp_path / "a.parquet", PAIRS)
    assert [[m.content for m in row.messages] for row in result.rows] == [
        ["Kaç?", "Üç."],
        ["Ne?", "Kalem."],
    ]
    assert [row.id for row in result.rows] == PARQUET_IDS
    assert reasons(result) == {3: "field 'soru': expected text, got null"}


def test_parquet_columns_are_taken_by_name_and_others_are_noted(tmp_path: Path) -> None:
    table = pa.table({"puan": [1.5], "yanıt": ["Üç."], "soru": ["Kaç?"]})
    pq.write_table(table, tmp_path / "a.bin")
    result = read_rows(tmp_path / "a.bin", PAIRS)
    assert result.rows[0].messages[0].content == "Kaç?"
    assert result.notes == ("fields ignored: 'puan'",)


def test_parquet_holds_nested_messages_as_well(tmp_path: Path) -> None:
    table = pa.table({"messages": [turns("Kaç?", "Üç."), turns("Ne?")], "language": ["tr", "tr"]})
    pq.write_table(table, tmp_path / "a.parquet")
    result = read_rows(tmp_path / "a.parquet", CHAT)
    assert [row.language for row in result.rows] == ["tr"]
    assert list(reasons(result)) == [2]


def test_a_missing_column_is_named_with_those_there_are(tmp_path: Path) -> None:
    pq.write_table(pa.table({"question": ["a"], "answer": ["b"]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"no column 'soru', 'yanıt'; its columns are 'question'"):
        read_rows(tmp_path / "a.parquet", PAIRS)


def test_a_parquet_file_cut_short_is_an_error(tmp_path: Path) -> None:
    pq.write_table(pa.table(PARQUET_PAIRS), tmp_path / "a.parquet")
    data = (tmp_path / "a.parquet").read_bytes()
    with pytest.raises(DataError, match="not a whole Parquet file"):
        read(tmp_path / "b.parquet", data[:-9], PAIRS)


def test_parquet_text_that_is_not_utf8_is_a_fault_of_its_row(tmp_path: Path) -> None:
    soru = pa.array([b"Ka\xff", b"Ne?"]).view(pa.string())
    pq.write_table(pa.table({"soru": soru, "yanıt": ["a", "b"]}), tmp_path / "a.parquet")
    result = read_rows(tmp_path / "a.parquet", PAIRS)
    assert len(result.rows) == 1
    assert reasons(result) == {1: "is not UTF-8"}


# --- files and curated rows -----------------------------------------------------------


def test_a_missing_file_and_a_folder_are_data_errors(tmp_path: Path) -> None:
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(DataError, match="cannot be read"):
            read_rows(path, CHAT)


def test_the_id_is_of_the_messages_alone() -> None:
    messages = (Message(role="user", content="a"), Message(role="assistant", content="b"))
    assert Row.of(messages, "en").id == Row.of(messages, None).id
    assert Row.of(messages, "en").id != Row.of(messages[::-1], "en").id


def test_a_curated_row_that_was_changed_is_refused(tmp_path: Path) -> None:
    row = Row.of((Message(role="user", content="a"), Message(role="assistant", content="b")), "en")
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps(row.to_json()) + "\n")
    assert read_curated(path) == (row,)
    path.write_text(json.dumps(row.to_json()).replace('"b"', '"c"') + "\n")
    with pytest.raises(DataError, match="row 1: its id is not the digest of its messages"):
        read_curated(path)
