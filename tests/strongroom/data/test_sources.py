from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strongroom.data.config import SourceConfig
from strongroom.data.rows import ReadResult
from strongroom.data.sources import load_source
from strongroom.errors import DataError
from tests.support.packages import make_package

SMALL_TALK = """
categories: [test]
conversations:
- - Bu hafta sonu ne yapıyorsun?
  - Köye gidiyorum.
  - Annemi göreceğim.
- - What is on the table?
  - |
    A cup.
    And a spoon.
"""
BROKEN_TALK = """
conversations:
- - How many?
  - 12
- - Nobody answers this.
"""


def load(uri: str, tmp_path: Path, **fields: str) -> ReadResult:
    source = SourceConfig(uri=uri, **fields)
    return load_source(source, base_dir=tmp_path / "base", cache=tmp_path / "cache")


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = make_package(
        tmp_path / "site",
        "chatterbot-corpus",
        "9.9.1",
        {
            "chatterbot_corpus/__init__.py": b"raise RuntimeError('imported')",
            "chatterbot_corpus/data/turkish/a.yml": SMALL_TALK.encode(),
            "chatterbot_corpus/data/turkish/b.yml": BROKEN_TALK.encode(),
            "chatterbot_corpus/data/klingon/a.yml": b"conversations: [",
            "chatterbot_corpus/data/elvish/a.yml": b"- no conversations",
        },
    )
    monkeypatch.syspath_prepend(site)


def test_a_path_is_relative_to_the_base_folder(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base/a.jsonl").write_text('{"q": "Kim?", "a": "Ben."}')
    assert len(load("a.jsonl", tmp_path, prompt_field="q", response_field="a").rows) == 1
    with pytest.raises(DataError, match=r"base/b\.jsonl: .*\n.*cannot be read"):
        load("b.jsonl", tmp_path)


@pytest.mark.parametrize(
    "uri",
    [
        "https://example.org/a.jsonl",
        "s3://bucket/a.jsonl",
        "pypi:other-corpus/english",
        "pypi:chatterbot-corpus",
        "pypi:chatterbot-corpus/../../etc",
        "hub:no-owner:train",
        "hub:owner/name",
    ],
)
def test_an_unknown_kind_of_source_is_refused_with_what_is_allowed(
    tmp_path: Path, uri: str
) -> None:
    with pytest.raises(DataError, match="expected"):
        load(uri, tmp_path)


@pytest.mark.usefixtures("corpus")
def test_a_conversation_gives_its_first_two_statements(tmp_path: Path) -> None:
    result = load("pypi:chatterbot-corpus/turkish", tmp_path, language="tr")
    assert [[m.content for m in row.messages] for row in result.rows] == [
        ["Bu hafta sonu ne yapıyorsun?", "Köye gidiyorum."],
        ["What is on the table?", "A cup.\nAnd a spoon."],
    ]
    assert {row.language for row in result.rows} == {"tr"}
    assert "later statements left out: 1" in result.notes


@pytest.mark.usefixtures("corpus")
def test_rows_of_a_package_are_judged_as_any_others(tmp_path: Path) -> None:
    result = load("pypi:chatterbot-corpus/turkish", tmp_path)
    assert [fault.row_number for fault in result.faults] == [3, 4]
    converted = tmp_path / "cache/chatterbot-corpus-9.9.1-turkish.jsonl"
    assert len(converted.read_text().splitlines()) == 4
    assert [path.name for path in converted.parent.iterdir()] == [converted.name]


@pytest.mark.usefixtures("corpus")
def test_an_unknown_language_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="it has elvish, klingon, turkish"):
        load("pypi:chatterbot-corpus/latin", tmp_path)


@pytest.mark.usefixtures("corpus")
@pytest.mark.parametrize("language", ["klingon", "elvish"])
def test_a_file_of_another_shape_is_named(tmp_path: Path, language: str) -> None:
    with pytest.raises(DataError, match=rf"{language}/a\.yml: .*\n.*'conversations'"):
        load(f"pypi:chatterbot-corpus/{language}", tmp_path)


def test_a_package_that_is_not_installed_is_named_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(DataError, match="pip install chatterbot-corpus"):
        load("pypi:chatterbot-corpus/english", tmp_path)


# --- the hub, played by a module of our own --------------------------------------------


class _HubDataset:
    def to_parquet(self, path: str) -> None:
        pq.write_table(pa.table({"question": ["2 + 2 = ?"], "answer": ["4"]}), path)


def hub(monkeypatch: pytest.MonkeyPatch, answer: Exception | None = None) -> list[Any]:
    calls: list[Any] = []

    def load_dataset(*args: object, **kwargs: object) -> _HubDataset:
        calls.append((args, kwargs["split"]))
        if answer:
            raise answer
        return _HubDataset()

    module = ModuleType("datasets")
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    return calls


@pytest.mark.parametrize(
    ("uri", "asked"),
    [
        ("hub:openai/gsm8k/main:train", ("openai/gsm8k", "main", "train")),
        ("hub:owner/a.name:test[:10%]", ("owner/a.name", None, "test[:10%]")),
    ],
)
def test_a_hub_dataset_is_asked_for_by_name_config_and_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str, asked: tuple[str | None, ...]
) -> None:
    calls = hub(monkeypatch)
    result = load(uri, tmp_path, prompt_field="question", response_field="answer")
    assert [row.messages[1].content for row in result.rows] == ["4"]
    assert calls == [(asked[:2], asked[2])]


def test_a_hub_that_does_not_answer_is_a_data_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub(monkeypatch, ConnectionError("no route\nto the hub"))
    with pytest.raises(DataError, match=r"\(ConnectionError: no route\); check the name"):
        load("hub:owner/name:train", tmp_path)


def test_the_hub_needs_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"strongroom\[hub\]"):
        load("hub:owner/name:train", tmp_path)
