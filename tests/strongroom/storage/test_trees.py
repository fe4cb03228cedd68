from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from strongroom import canonical
from strongroom.errors import (
    FormatError,
    InputError,
    IntegrityError,
    ObjectMissingError,
    StorageFullError,
)
from strongroom.names import Digest
from strongroom.storage import trees
from strongroom.storage.base import Storage
from strongroom.storage.memory import Faults, MemoryStorage, SimulatedCrash
from strongroom.storage.trees import TreeFile, fetch_tree, put_tree, read_tree, tree_folder

FILES = {
    "config.json": b'{"hidden_size": 8}',
    "empty.txt": b"",
    "model.safetensors": bytes(range(256)) * 400,
    "shards/one/part-0.bin": b"nested",
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "_BLOCK_BYTES", 10_000)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "source", FILES)


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_a_tree_comes_back_as_it_was(storage: Storage, source: Path, tmp_path: Path) -> None:
    digest = put_tree(storage, "models", source)
    fetched = fetch_tree(storage, "models", digest, tmp_path / "cache")
    assert fetched == tmp_path / "cache/models" / digest.hex
    assert contents(fetched) == FILES
    assert read_tree(storage, "models", digest) == tuple(
        TreeFile(name=name, num_bytes=len(data), sha256=Digest.of(data))
        for name, data in FILES.items()
    )
    # A fetched tree is itself a source of the same tree.
    assert put_tree(MemoryStorage(), "models", fetched) == digest


def test_the_digest_is_that_of_the_tree_document(source: Path) -> None:
    storage = MemoryStorage()
    digest = put_tree(storage, "models", source)
    document = canonical.loads(storage.read(f"inputs/models/{digest.hex}/tree.json"), what="tree")
    assert canonical.digest(document) == digest
    assert document["format"] == "strongroom.tree/1"
    assert [file["name"] for file in document["files"]] == sorted(FILES)
    assert document["files"][1] == {
        "name": "empty.txt",
        "num_bytes": 0,
        "sha256": str(Digest.of(b"")),
    }


def test_the_tree_document_is_created_last(source: Path) -> None:
    storage = MemoryStorage()
    digest = put_tree(storage, "datasets", source)
    assert storage.operations[-1] == f"create {tree_folder('datasets', digest)}/tree.json"


def test_a_tree_that_is_there_is_not_put_again(source: Path) -> None:
    storage = MemoryStorage()
    digest = put_tree(storage, "models", source)
    num_operations = len(storage.operations)
    assert put_tree(storage, "models", source) == digest
    assert len(storage.operations) == num_operations


def test_a_put_cut_short_anywhere_is_completed_by_the_next(source: Path, tmp_path: Path) -> None:
    clean = MemoryStorage()
    digest = put_tree(clean, "models", source)
    for number in range(1, len(clean.operations) + 1):
        for faults in (Faults(crash_before=number), Faults(crash_after=number)):
            storage = MemoryStorage(faults=faults)
            with suppress(SimulatedCrash):
                put_tree(storage, "models", source)
            after = storage.reopen()
            assert put_tree(after, "models", source) == digest
            fetched = fetch_tree(after, "models", digest, tmp_path / f"{number}" / repr(faults))
            assert contents(fetched) == FILES


def test_an_uncommitted_tree_cannot_be_fetched(source: Path, tmp_path: Path) -> None:
    num_operations = len(_operations_of(source))
    storage = MemoryStorage(faults=Faults(crash_before=num_operations))
    with suppress(SimulatedCrash):
        put_tree(storage, "models", source)
    digest = put_tree(MemoryStorage(), "models", source)
    with pytest.raises(ObjectMissingError, match="no committed tree models/sha256:"):
        fetch_tree(storage.reopen(), "models", digest, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def _operations_of(source: Path) -> list[str]:
    storage = MemoryStorage()
    put_tree(storage, "models", source)
    return storage.operations


def test_a_foreign_object_in_the_place_of_a_file_is_found(source: Path) -> None:
    digest = put_tree(MemoryStorage(), "models", source)
    storage = MemoryStorage()
    storage.create(f"inputs/models/{digest.hex}/config.json", b'{"hidden_size": 9}')
    with pytest.raises(IntegrityError, match=r"config\.json"):
        put_tree(storage, "models", source)


def test_a_file_that_changes_while_it_is_put_leaves_no_object(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = MemoryStorage()
    measured = trees._measured

    def measure_then_change(folder: Path, name: str) -> TreeFile:
        file = measured(folder, name)
        if name == "model.safetensors":
            (folder / name).write_bytes(b"changed")
        return file

    monkeypatch.setattr(trees, "_measured", measure_then_change)
    with pytest.raises(IntegrityError, match=r"model\.safetensors.*got 7 bytes"):
        put_tree(storage, "models", source)
    assert not any("model.safetensors" in info.key for info in storage.walk(""))
    assert not any("tree.json" in info.key for info in storage.walk(""))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "shards/one/part-0.bin"])
def test_one_flipped_bit_in_a_stored_file_is_found(source: Path, tmp_path: Path, name: str) -> None:
    storage = MemoryStorage()
    digest = put_tree(storage, "models", source)
    key = f"inputs/models/{digest.hex}/{name}"
    sick = storage.reopen(faults=Faults(flip_bits={key: 8 * len(FILES[name]) - 1}))
    with pytest.raises(IntegrityError) as caught:
        fetch_tree(sick, "models", digest, tmp_path)
    assert caught.value.file == key
    assert contents(tmp_path / "models") == {}


def test_a_changed_tree_document_is_found(source: Path, tmp_path: Path) -> None:
    storage = MemoryStorage()
    digest = put_tree(storage, "models", source)
    key = f"inputs/models/{digest.hex}/tree.json"
    sick = storage.reopen(faults=Faults(flip_bits={key: 100}))
    with pytest.raises(IntegrityError, match="tree document differs"):
        fetch_tree(sick, "models", digest, tmp_path)
    with pytest.raises(IntegrityError, match="tree document differs"):
        put_tree(sick, "models", source)


@pytest.mark.parametrize(
    "document",
    [
        {"format": "strongroom.tree/2", "files": []},
        {"format": "strongroom.tree/1"},
        {"format": "strongroom.tree/1", "files": [{"name": "a"}]},
        {"format": "strongroom.tree/1", "files": ["a"]},
        {
            "format": "strongroom.tree/1",
            "files": [{"name": "../a", "num_bytes": 0, "sha256": str(Digest.of(b""))}],
        },
    ],
)
def test_a_malformed_tree_document_is_refused(document: dict[str, object], tmp_path: Path) -> None:
    storage = MemoryStorage()
    digest = canonical.digest(document)
    storage.create(f"inputs/models/{digest.hex}/tree.json", canonical.dumps(document))
    with pytest.raises(FormatError, match=r"tree\.json"):
        fetch_tree(storage, "models", digest, tmp_path)


# --- the cache -------------------------------------------------------------------------


def test_a_cached_tree_is_not_fetched_again(source: Path, tmp_path: Path) -> None:
    storage = MemoryStorage()
    digest = put_tree(storage, "models", source)
    fetched = fetch_tree(storage, "models", digest, tmp_path)
    key = f"inputs/models/{digest.hex}/config.json"
    storage.delete(key)
    assert fetch_tree(storage, "models", digest, tmp_path, verify=True) == fetched
    with pytest.raises(ObjectMissingError, match=r"config\.json"):
        fetch_tree(storage, "models", digest, tmp_path / "other")


def test_a_broken_cached_tree_is_fetched_anew(source: Path, tmp_path: Path) -> None:
    storage = MemoryStorage()
    digest = put_tree(storage, "models", source)
    fetched = fetch_tree(storage, "models", digest, tmp_path)
    for break_it in (
        lambda: (fetched / "config.json").write_bytes(b""),
        (fetched / "config.json").unlink,
        lambda: (fetched / "extra.json").write_bytes(b""),
    ):
        break_it()
        assert contents(fetch_tree(storage, "models", digest, tmp_path)) == FILES
    (fetched / "config.json").write_bytes(FILES["config.json"].replace(b"8", b"9"))
    assert contents(fetch_tree(storage, "models", digest, tmp_path, verify=True)) == FILES
    assert [path.name for path in (tmp_path / "models").iterdir()] == [digest.hex]


def test_of_two_that_fetch_at_once_both_get_the_tree(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = MemoryStorage()
    digest = put_tree(storage, "models", source)
    appear = trees._appear

    def other_is_faster(temp: Path, target: Path) -> None:
        monkeypatch.setattr(trees, "_appear", appear)
        fetch_tree(storage, "models", digest, tmp_path)
        appear(temp, target)

    monkeypatch.setattr(trees, "_appear", other_is_faster)
    assert contents(fetch_tree(storage, "models", digest, tmp_path)) == FILES
    assert [path.name for path in (tmp_path / "models").iterdir()] == [digest.hex]


def test_a_full_disk_under_the_cache_is_named(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = MemoryStorage()
    digest = put_tree(storage, "models", source)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageFullError, match="No space left"):
        fetch_tree(storage, "models", digest, tmp_path)
    assert contents(tmp_path / "models") == {}


# --- the source ------------------------------------------------------------------------


def test_a_source_that_cannot_be_a_tree_is_named(tmp_path: Path) -> None:
    write(tmp_path / "spaces", {"a b.json": b""})
    write(tmp_path / "reserved", {"tree.json": b""})
    write(tmp_path / "linked", {"a.json": b""})
    (tmp_path / "empty").mkdir()
    (tmp_path / "linked/folder").symlink_to(tmp_path / "spaces")
    write(tmp_path / "dangling", {"a.json": b""})
    (tmp_path / "dangling/gone.json").symlink_to(tmp_path / "gone.json")
    for name, reason in (
        ("spaces", "storage key 'a b.json'"),
        ("reserved", "reserved"),
        ("linked", "link to a folder"),
        ("dangling", "gone.json"),
        ("empty", "empty folder"),
        ("nowhere", "expected a folder"),
        ("spaces/a b.json", "expected a folder"),
    ):
        with pytest.raises(InputError, match=reason):
            put_tree(MemoryStorage(), "datasets", tmp_path / name)


def test_a_link_to_a_file_counts_as_the_file(source: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    for name in FILES:
        (linked / name).parent.mkdir(parents=True, exist_ok=True)
        (linked / name).symlink_to(source / name)
    storage = MemoryStorage()
    assert put_tree(storage, "models", linked) == put_tree(storage, "models", source)
