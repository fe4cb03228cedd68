from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor

from strongroom.checkpoint.catalogue import Committed, read_checkpoint
from strongroom.checkpoint.manifest import MANIFEST_FILE, SEAL_FILE, FileEntry, seal_bytes
from strongroom.checkpoint.reader import CheckpointReader
from strongroom.errors import InputError, IntegrityError, ObjectMissingError
from strongroom.names import Digest
from strongroom.storage.local import LocalStorage
from strongroom.storage.memory import Faults, MemoryStorage
from tests.support.checkpoints import bits, mixed_state, same, save_checkpoint, zeros_like


def test_every_kind_of_tensor_reads_back_bit_for_bit() -> None:
    storage = MemoryStorage()
    state = mixed_state()
    reader = CheckpointReader(storage, save_checkpoint(storage, tensors=state))
    assert reader.tensor_names == tuple(sorted(state))
    assert same({name: reader.read(name) for name in reader.tensor_names}, state)


def test_every_kind_of_tensor_loads_into_another_bit_for_bit() -> None:
    storage = MemoryStorage()
    state = mixed_state()
    target = zeros_like(state)
    CheckpointReader(storage, save_checkpoint(storage, tensors=state)).load_into(target)
    assert same(target, state)


def test_stock_dcp_loads_what_was_written(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    state = mixed_state()
    committed = save_checkpoint(storage, tensors=state)
    target = zeros_like(state)
    dcp.load(target, checkpoint_id=tmp_path / committed.folder)  # type: ignore[attr-defined]
    assert same(target, state)


def test_targets_may_be_views_and_parameters() -> None:
    storage = MemoryStorage()
    source = {"w": torch.arange(12.0).reshape(3, 4), "p": torch.ones(2)}
    committed = save_checkpoint(storage, tensors=source)
    base = torch.zeros(4, 3)
    target = {"w": base.t(), "p": torch.nn.Parameter(torch.zeros(2))}
    CheckpointReader(storage, committed).load_into(target)
    assert torch.equal(base, source["w"].t())
    assert torch.equal(target["p"], source["p"])


def test_prefixes_choose_what_is_loaded() -> None:
    storage = MemoryStorage()
    committed = save_checkpoint(
        storage, tensors={"model.w": torch.ones(2), "rng.1.torch": torch.ones(1)}
    )
    target = {"model.w": torch.zeros(2)}
    CheckpointReader(storage, committed).load_into(target, prefixes=("model.", "optim."))
    assert torch.equal(target["model.w"], torch.ones(2))


def test_what_does_not_fit_is_refused_with_every_difference() -> None:
    storage = MemoryStorage()
    committed = save_checkpoint(
        storage, tensors={"a": torch.ones(2), "b": torch.ones(3), "extra": torch.ones(1)}
    )
    target = {
        "a": torch.zeros(2, dtype=torch.bfloat16),
        "b": torch.zeros(3, 1),
        "missing": torch.zeros(1),
    }
    with pytest.raises(InputError) as caught:
        CheckpointReader(storage, committed).load_into(target)
    for part in (
        "the checkpoint lacks missing",
        "nothing takes the checkpoint's extra",
        "a is float32 [2] in the checkpoint, bfloat16 [2] in the target",
        "b is float32 [3] in the checkpoint, float32 [3, 1] in the target",
    ):
        assert part in str(caught.value)
    assert not any(bits(tensor).any() for tensor in target.values()), "a target was touched"


def test_a_flipped_bit_is_named_and_reaches_no_target() -> None:
    storage = MemoryStorage()
    state = {"w": torch.ones(4, 2)}
    committed = save_checkpoint(storage, tensors=state)
    chunk = committed.manifest.tensor("w").chunks[0]
    key = f"{committed.folder}/{chunk.file}"
    faulty = storage.reopen(faults=Faults(flip_bits={key: (chunk.offset + 5) * 8 + 3}))
    target = zeros_like(state)
    with pytest.raises(IntegrityError) as caught:
        CheckpointReader(faulty, committed).load_into(target)
    error = caught.value
    assert (error.file, error.tensor, error.offset) == (key, "w", chunk.offset)
    assert error.expected == str(chunk.sha256)
    assert error.got not in {"", error.expected}
    assert torch.equal(target["w"], torch.zeros(4, 2))


def test_a_missing_shard_is_a_missing_object() -> None:
    storage = MemoryStorage()
    committed = save_checkpoint(storage)
    storage.delete(f"{committed.folder}/__0_0.distcp")
    with pytest.raises(ObjectMissingError):
        CheckpointReader(storage, committed).read("model.layer.bias")


def test_a_gap_in_the_manifest_is_no_uninitialised_memory() -> None:
    storage = MemoryStorage()
    committed = save_checkpoint(storage, tensors={"w": torch.ones(4, 2)})
    (entry,) = committed.manifest.tensors
    manifest = replace(committed.manifest, tensors=(replace(entry, shape=(5, 2)),))
    reader = CheckpointReader(storage, replace(committed, manifest=manifest))
    with pytest.raises(IntegrityError, match="2 of 10 elements lie in no chunk"):
        reader.read("w")
    with pytest.raises(IntegrityError, match="2 of 10 elements lie in no chunk"):
        reader.load_into({"w": torch.zeros(5, 2)})


class Bomb:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.mark),)


def test_nothing_is_ever_unpickled(tmp_path: Path) -> None:
    """Pickles of an attacker who can also forge manifest and seal: read, never run."""
    storage = MemoryStorage()
    committed = save_checkpoint(storage)
    mark = tmp_path / "mark"
    bomb = pickle.dumps(Bomb(mark))
    forged = forge(storage, committed, bomb)
    reader = CheckpointReader(storage, forged)
    target = {name: torch.zeros_like(reader.read(name)) for name in reader.tensor_names}
    reader.load_into(target)
    assert not mark.exists()
    pickle.loads(bomb)  # noqa: S301 -- the control: this bomb does go off
    assert mark.exists()


def forge(storage: MemoryStorage, committed: Committed, bomb: bytes) -> Committed:
    """Replace `.metadata` and the pickle of every container by `bomb`; renew manifest and seal."""
    contents: dict[str, bytes] = {".metadata": bomb}
    shard = bytearray(storage.read(f"{committed.folder}/__0_0.distcp"))
    for tensor in committed.manifest.tensors:
        start = shard.rfind(b"PK\x03\x04", 0, tensor.chunks[0].offset)
        start = shard.rfind(b"data.pkl", 0, start) + 64
        shard[start : start + len(bomb)] = bomb
    contents["__0_0.distcp"] = bytes(shard)
    for name, data in contents.items():
        storage.replace(f"{committed.folder}/{name}", data)
    manifest = replace(
        committed.manifest,
        files=tuple(
            FileEntry(name=name, num_bytes=len(data), sha256=Digest.of(data))
            for name, data in sorted(contents.items())
        ),
    )
    storage.replace(f"{committed.folder}/{SEAL_FILE}", seal_bytes(manifest.checkpoint_id))
    storage.replace(f"{committed.folder}/{MANIFEST_FILE}", manifest.to_bytes())
    return read_checkpoint(storage, committed.name)


def test_a_chunk_is_read_once_however_many_parts_of_it_are_wanted() -> None:
    storage = CountingStorage()
    committed = save_checkpoint(storage, tensors={"w": torch.ones(4, 2)})
    storage.reads.clear()
    CheckpointReader(storage, committed).load_into({"w": torch.zeros(4, 2)})
    assert len(storage.reads) == 1


class CountingStorage(MemoryStorage):
    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []

    def read(self, key: str, *, offset: int = 0, num_bytes: int | None = None) -> bytes:
        self.reads.append(key)
        return super().read(key, offset=offset, num_bytes=num_bytes)


def test_row_major_parts_join_to_the_whole_tensor() -> None:
    storage = MemoryStorage()
    state: dict[str, Tensor] = mixed_state()
    reader = CheckpointReader(storage, save_checkpoint(storage, tensors=state))
    for name, tensor in state.items():
        parts = [bits(part) for part in reader.row_major(name)]
        assert torch.equal(torch.cat(parts) if parts else bits(tensor), bits(tensor))
