"""What leaves a store is whole, loads by itself, and was checked byte by byte on the way."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch.distributed.checkpoint as dcp

from strongroom.checkpoint.catalogue import Committed, read_checkpoint
from strongroom.checkpoint.export import export_dcp
from strongroom.checkpoint.layout import checkpoint_folder
from strongroom.checkpoint.manifest import MANIFEST_FILE, SEAL_FILE, Manifest
from strongroom.checkpoint.reading.reader import CheckpointReader
from strongroom.checkpoint.reading.state import state_digest
from strongroom.checkpoint.shard import METADATA_FILE
from strongroom.errors import ConflictError, IntegrityError
from strongroom.names import CheckpointName
from strongroom.storage.base import Storage
from strongroom.storage.local import LocalStorage
from strongroom.storage.memory import MemoryStorage
from strongroom.verification.rungs import check_bytes
from tests.support import golden
from tests.support.checkpoints import same, zeros_like

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
FIRST_VERSION = CheckpointName.parse("golden-1/attempt-0001/step-00000002")
NAMES = (FIRST_VERSION, golden.FULL, golden.DELTA, golden.NEXT_DELTA)


def store_of(name: CheckpointName) -> LocalStorage:
    return LocalStorage(GOLDEN / ("checkpoint-1" if name == FIRST_VERSION else "checkpoint-2"))


def alone(target: Storage, copy: Manifest) -> tuple[MemoryStorage, Committed]:
    """Return a store that holds nothing but an exported copy."""
    storage = MemoryStorage()
    for info in target.walk(""):
        storage.create(f"{checkpoint_folder(copy.name)}/{info.key}", target.read(info.key))
    return storage, read_checkpoint(storage, copy.name)


@pytest.mark.parametrize("part_min_bytes", [1, 1024])
@pytest.mark.parametrize("name", NAMES, ids=lambda name: name.short)
def test_a_copy_stands_alone_and_means_the_same(name: CheckpointName, part_min_bytes: int) -> None:
    source, target = store_of(name), MemoryStorage(part_min_bytes=part_min_bytes)
    committed = read_checkpoint(source, name)
    copy = export_dcp(source, committed, target)
    storage, copied = alone(target, copy)
    assert copied.manifest == copy
    assert copy.chain == 0
    assert not copy.lenders
    found, faults = check_bytes(storage, name, expected_id=copy.checkpoint_id)
    assert (found, faults) == (copied, [])
    assert state_digest(CheckpointReader(storage, copied)) == state_digest(
        CheckpointReader(source, committed)
    )


@pytest.mark.parametrize("name", [FIRST_VERSION, golden.FULL], ids=lambda name: name.short)
def test_a_full_checkpoint_is_copied_byte_for_byte(name: CheckpointName) -> None:
    source, target = store_of(name), MemoryStorage()
    committed = read_checkpoint(source, name)
    copy = export_dcp(source, committed, target)
    assert copy.checkpoint_id == committed.checkpoint_id
    assert {info.key: target.read(info.key) for info in target.walk("")} == {
        info.key.rpartition("/")[2]: source.read(info.key) for info in source.walk(committed.folder)
    }


@pytest.mark.parametrize("name", NAMES[1:], ids=lambda name: name.short)
def test_stock_readers_load_a_copy(name: CheckpointName, tmp_path: Path) -> None:
    source = store_of(name)
    export_dcp(source, read_checkpoint(source, name), LocalStorage(tmp_path / "copy"))
    expected = golden.expected(name.step.number)
    state = zeros_like(expected)
    dcp.load(state, checkpoint_id=tmp_path / "copy", no_dist=True)  # type: ignore[attr-defined]
    assert same(state, expected)


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name.short)
def test_a_changed_byte_does_not_leave(name: CheckpointName, tmp_path: Path) -> None:
    shutil.copytree(store_of(name).root, tmp_path / "store")
    source = LocalStorage(tmp_path / "store")
    committed = read_checkpoint(source, name)
    for file in committed.manifest.files:
        is_made_anew = file.name == METADATA_FILE and committed.manifest.chain > 0
        if file.num_bytes < 1000 or is_made_anew:  # a header alone is tried below
            continue
        path = source.root / committed.manifest.key_of(file.name)
        data = path.read_bytes()
        chunks = [
            chunk
            for tensor in committed.manifest.tensors
            for chunk in tensor.chunks
            if chunk.file == file.name
        ]
        place = chunks[0].offset + chunks[0].num_bytes // 2 if chunks else file.num_bytes // 2
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        target = MemoryStorage()
        with pytest.raises(IntegrityError) as caught:
            export_dcp(source, committed, target)
        assert file.name.rpartition("/")[2] in str(caught.value)
        assert target.stat(MANIFEST_FILE) is None
        assert target.stat(SEAL_FILE) is None
        path.write_bytes(data)


def test_a_shard_of_another_save_does_not_leave(tmp_path: Path) -> None:
    shutil.copytree(store_of(golden.FULL).root, tmp_path / "store")
    source = LocalStorage(tmp_path / "store")
    committed = read_checkpoint(source, golden.FULL)
    path = source.root / committed.folder / "__1_0.distcp"
    path.write_bytes(path.read_bytes().replace(b'"step":2', b'"step":3', 1))
    with pytest.raises(IntegrityError, match="__1_0"):
        export_dcp(source, committed, MemoryStorage())


def test_a_lender_that_is_gone_is_named(tmp_path: Path) -> None:
    shutil.copytree(store_of(golden.DELTA).root, tmp_path / "store")
    source = LocalStorage(tmp_path / "store")
    committed = read_checkpoint(source, golden.DELTA)
    source.delete(f"{checkpoint_folder(golden.FULL)}/{MANIFEST_FILE}")
    with pytest.raises(IntegrityError, match="step-00000002"):
        export_dcp(source, committed, MemoryStorage())


def test_only_an_empty_place_is_exported_into() -> None:
    source, target = store_of(golden.FULL), MemoryStorage()
    target.create("notes.txt", b"somebody else's")
    with pytest.raises(ConflictError, match=r"notes\.txt"):
        export_dcp(source, read_checkpoint(source, golden.FULL), target)
    assert [info.key for info in target.walk("")] == ["notes.txt"]


def test_a_lender_of_more_ranks_fits_into_the_copy() -> None:
    source, target = store_of(golden.DELTA), MemoryStorage()
    committed = read_checkpoint(source, golden.DELTA)
    fewer = replace(committed, manifest=replace(committed.manifest, world_size=1))
    names = {info.key for info in (export_dcp(source, fewer, target), target)[1].walk("")}
    shards = names - {METADATA_FILE, MANIFEST_FILE, SEAL_FILE}
    assert len(shards) == len(committed.manifest.files) - 1
    assert all(name.startswith("__0_") for name in shards)
