from __future__ import annotations

import json
from pathlib import Path

import pytest

from strongroom.errors import DataError, ModelSourceError, StorageError
from strongroom.tokenizer.adapt import TokenizerReport, choose_tokenizer
from tests.support.tiny_model import VOCAB_SIZE, make_tiny_model


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_tiny_model(tmp_path_factory.mktemp("tiny"))
    (folder / "README.md").write_text("not of the tokenizer")
    return folder


@pytest.fixture
def curated(tmp_path: Path) -> Path:
    folder = tmp_path / "curated"
    folder.mkdir()
    rows = [("Kapı açık mı?", "Kapalı.", "tr"), ("Where?", "There.", "en"), ("?", "!", None)]
    with (folder / "train.jsonl").open("w", encoding="utf-8") as lines:
        for prompt, response, language in rows:
            messages = [
                {"role": "user", "content": prompt},
                {"role": "assistant", "content": response},
            ]
            lines.write(json.dumps({"id": "x", "language": language, "messages": messages}) + "\n")
    return folder


def test_the_tokenizer_is_copied_byte_for_byte_and_the_model_is_not(
    base: Path, curated: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    report = choose_tokenizer(base, curated, out)
    assert report.files == ("chat_template.jinja", "tokenizer.json", "tokenizer_config.json")
    assert sorted(p.name for p in out.iterdir()) == sorted([*report.files, "fertility.json"])
    for name in report.files:
        assert (out / name).read_bytes() == (base / name).read_bytes()


def test_the_report_stands_beside_it(base: Path, curated: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    report = choose_tokenizer(base, curated, out)
    stored = TokenizerReport.from_bytes((out / "fertility.json").read_bytes(), where="test")
    assert stored == report
    assert not report.adapted
    assert report.vocab_size == VOCAB_SIZE
    assert report.lost == ()
    assert {name: f.num_texts for name, f in report.fertility.items()} == {
        "en": 2,
        "tr": 2,
        "und": 2,
    }


def test_the_copy_loads_without_the_model_and_keeps_every_id(
    base: Path, curated: Path, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    out = tmp_path / "out"
    choose_tokenizer(base, curated, out)
    one, other = (AutoTokenizer.from_pretrained(folder) for folder in (base, out))
    assert other.get_vocab() == one.get_vocab()
    assert repr(other.added_tokens_decoder) == repr(one.added_tokens_decoder)
    assert other.chat_template == one.chat_template


def test_letters_that_a_tokenizer_loses_are_reported(
    base: Path, curated: Path, tmp_path: Path
) -> None:
    careless = tmp_path / "careless"
    careless.mkdir()
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        (careless / name).write_bytes((base / name).read_bytes())
    tokenizer = json.loads((base / "tokenizer.json").read_text())
    steps = [{"type": kind} for kind in ("Lowercase", "NFD", "StripAccents")]
    tokenizer["normalizer"] = {"type": "Sequence", "normalizers": steps}
    (careless / "tokenizer.json").write_text(json.dumps(tokenizer))
    report = choose_tokenizer(careless, curated, tmp_path / "out")
    assert report.lost == ("U+004B", "U+0054", "U+0057", "U+00E7")  # K, T, W and ç


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_base_without_a_complete_tokenizer_is_refused(
    curated: Path, tmp_path: Path, name: str
) -> None:
    folder = make_tiny_model(tmp_path / "tiny")
    (folder / name).unlink()
    with pytest.raises(ModelSourceError, match=f"lacks {name}"):
        choose_tokenizer(folder, curated, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_that_does_not_load_is_refused(curated: Path, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "tiny")
    (folder / "tokenizer.json").write_text('{"version": "1.0", "model": 3}')
    with pytest.raises(ModelSourceError, match="cannot be loaded"):
        choose_tokenizer(folder, curated, tmp_path / "out")


def test_curated_rows_that_are_not_are_refused(base: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        choose_tokenizer(base, tmp_path, tmp_path / "out")
    (tmp_path / "train.jsonl").write_text('{"text": 1}\n')
    with pytest.raises(DataError, match="curate anew"):
        choose_tokenizer(base, tmp_path, tmp_path / "out")


def test_a_folder_that_cannot_be_written_is_a_storage_error(
    base: Path, curated: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").write_text("a file where the folder should be")
    with pytest.raises(StorageError, match="cannot copy the tokenizer"):
        choose_tokenizer(base, curated, tmp_path / "out")
