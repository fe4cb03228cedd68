from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strongroom.data.config import DataConfig, SourceConfig
from strongroom.data.curate import CurationReport, curate
from strongroom.data.rows import Row, read_curated
from strongroom.errors import DataError, StorageError
from strongroom.names import Digest


def write(path: Path, pairs: list[tuple[str, str]], *broken: str) -> Path:
    lines = [json.dumps({"q": q, "a": a}, ensure_ascii=False) for q, a in pairs]
    path.write_text("\n".join([*lines, *broken]) + "\n")
    return path


def pairs(n: int, tag: str = "soru") -> list[tuple[str, str]]:
    return [(f"{tag} {i}?", f"cevap {i}.") for i in range(n)]


def settings(*names: str, **changes: Any) -> DataConfig:  # noqa: ANN401 -- any field
    sources = tuple(SourceConfig(uri=n, prompt_field="q", response_field="a") for n in names)
    return DataConfig(sources=sources, **({"held_out_fraction": 0.2} | changes))


def run(tmp_path: Path, config: DataConfig, out: str = "out", **changes: Any) -> CurationReport:  # noqa: ANN401 -- any argument
    return curate(
        config,
        base_dir=tmp_path,
        cache=tmp_path / "cache",
        out=tmp_path / out,
        **({"count_tokens": None} | changes),
    )


def length(row: Row) -> int:
    return sum(len(message.content) for message in row.messages)


def test_every_row_read_is_in_a_file_or_counted(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [*pairs(20), *pairs(3), ("uzun " * 40, "peki")], '{"q": 1}')
    write(tmp_path / "b.jsonl", [*pairs(10, "autre"), *pairs(2)])
    config = settings("a.jsonl", "b.jsonl", max_tokens=100, max_fault_fraction=0.1)
    report = run(tmp_path, config, count_tokens=length)
    for source in report.sources:
        assert source.num_read == (
            source.num_broken
            + source.num_duplicates
            + source.num_too_long
            + source.num_train
            + source.num_held_out
        )
    first, second = report.sources
    assert (first.num_read, first.num_broken, first.num_duplicates, first.num_too_long) == (
        25,
        1,
        3,
        1,
    )
    assert first.broken == ("row 25: has no field 'a'; its fields are 'q'",)
    assert (second.num_read, second.num_duplicates) == (12, 2)
    assert report.num_train == len(read_curated(tmp_path / "out/train.jsonl")) == 24
    assert report.num_held_out == len(read_curated(tmp_path / "out/held_out.jsonl")) == 6


def test_the_report_stands_in_the_folder_and_vouches_for_the_files(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", pairs(10))
    report = run(tmp_path, settings("a.jsonl"))
    out = tmp_path / "out"
    stored = CurationReport.from_bytes((out / "curation.json").read_bytes(), where="test")
    assert stored == report
    assert report.train == str(Digest.of((out / "train.jsonl").read_bytes()))
    assert report.held_out == str(Digest.of((out / "held_out.jsonl").read_bytes()))
    assert sorted(p.name for p in out.iterdir()) == [
        "curation.json",
        "held_out.jsonl",
        "train.jsonl",
    ]


def test_a_report_that_cannot_be_written_is_not_left_from_before(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", pairs(10))
    run(tmp_path, settings("a.jsonl"))
    (tmp_path / "out/held_out.jsonl").unlink()
    (tmp_path / "out/held_out.jsonl").mkdir()
    with pytest.raises(StorageError, match=r"cannot write .*held_out\.jsonl: Is a directory"):
        run(tmp_path, settings("a.jsonl"))
    assert not (tmp_path / "out/curation.json").exists()


def test_the_first_of_two_duplicates_is_kept_whatever_its_source(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", pairs(5))
    write(tmp_path / "b.jsonl", pairs(5))
    report = run(tmp_path, settings("a.jsonl", "b.jsonl"))
    assert [source.num_duplicates for source in report.sources] == [0, 5]


def test_length_is_checked_before_anything_is_cut(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [*pairs(5), ("x" * 300_000, "y")])
    report = run(tmp_path, settings("a.jsonl"), count_tokens=length)
    assert report.sources[0].num_too_long == 1
    kept = run(tmp_path, settings("a.jsonl"), out="all")
    assert kept.num_train + kept.num_held_out == 6


def test_a_row_that_cannot_be_rendered_is_broken_and_keeps_its_number(tmp_path: Path) -> None:
    def refuse_one(row: Row) -> int:
        if row.messages[0].content == "soru 4?":
            raise DataError(f"row {row.id}", ["the chat template refuses it"])
        return length(row)

    write(tmp_path / "a.jsonl", pairs(10), "", "{")
    config = settings("a.jsonl", max_fault_fraction=0.5)
    report = run(tmp_path, config, count_tokens=refuse_one)
    assert report.sources[0].num_broken == 2
    assert report.sources[0].broken[0] == "row 5: the chat template refuses it"
    assert report.sources[0].broken[1].startswith("row 12: is not JSON")
    with pytest.raises(DataError, match="row 5: the chat template refuses it"):
        run(tmp_path, settings("a.jsonl"), count_tokens=refuse_one)


def test_rows_that_spell_a_control_token_are_counted(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [*pairs(5), ("What is </s>?", "Text."), ("a <|end|>", "<|end|>")])
    report = run(tmp_path, settings("a.jsonl"), control_tokens=("</s>", "<|end|>"))
    assert report.num_with_control_text == 2


def test_every_source_that_cannot_be_used_is_named_at_once(tmp_path: Path) -> None:
    write(tmp_path / "good.jsonl", pairs(10))
    write(tmp_path / "empty.jsonl", [])
    write(tmp_path / "broken.jsonl", pairs(8), "{", '{"q": "gizli"}')
    with pytest.raises(DataError) as caught:
        run(tmp_path, settings("none.jsonl", "good.jsonl", "empty.jsonl", "broken.jsonl"))
    message = "\n".join(caught.value.faults)
    assert "none.jsonl: cannot be read" in message
    assert "empty.jsonl: holds no row at all" in message
    assert "broken.jsonl: 2 of 10 rows are broken, at most 1.00% may be" in message
    assert "broken.jsonl: row 9: is not JSON" in message
    assert "broken.jsonl: row 10: has no field 'a'" in message
    assert "good.jsonl" not in message
    assert not (tmp_path / "out").exists()


def test_a_few_broken_rows_are_dropped_and_named_in_the_report(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", pairs(30), *["{"] * 30)
    report = run(tmp_path, settings("a.jsonl", max_fault_fraction=0.5))
    assert report.sources[0].num_broken == 30
    assert len(report.sources[0].broken) == 21
    assert report.sources[0].broken[-1] == "and 10 more"


def test_rows_that_are_all_too_long_leave_nothing(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", pairs(10))
    with pytest.raises(DataError, match="none of 10 rows is left: all are longer than 8 tokens"):
        run(tmp_path, settings("a.jsonl", max_tokens=8), count_tokens=length)
